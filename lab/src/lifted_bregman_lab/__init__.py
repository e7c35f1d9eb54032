"""The lab of lifted_bregman: the reproduction of the paper, races against other methods, and studies of scale.

`lifted reproduce` and `lifted bench` are its commands; `lifted report` shows what they stored.
"""
