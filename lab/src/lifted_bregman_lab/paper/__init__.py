"""The figures and findings of "Lifted Bregman Training of Neural Networks" (Wang and Benning, 2023), by the library.

The library never imports this package.
"""
