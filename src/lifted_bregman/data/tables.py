"""The registry of named tables for the detection of abnormal samples: one .npz file each, known by its sha256."""

from __future__ import annotations

from dataclasses import dataclass

from lifted_bregman.data.registry import FileInfo
from lifted_bregman.data.texts import TextInfo

_FOLDER = "https://raw.githubusercontent.com/Minqi824/ADBench/main/adbench/datasets/Classical/"

# The files of ADBench: name, samples, features, abnormal samples, bytes, sha256.
_FILES = """
2_annthyroid 7200 6 534 66547 e738f7c58a8740d2c4aac4c71ff49ce5e1d1aa16f44178135fc9c09df05fad1b
4_breastw 683 9 239 3023 4f37ce07dbc25ddad8178fdc6d664ab46d2d0000ee28c2787c3c7ff3c03ef9f6
6_cardio 1831 21 176 68471 bc5009bde6930b4d298b594f31b34485a9a17210cff0e8fb00a8c3068b885a2d
7_Cardiotocography 2114 21 466 37911 5ae84910430f05923e11b6f537243263977c9136949dabd891e3570aeec51e29
12_fault 1941 27 673 192040 ec27301f9a4cf7c5d8b22c360cf37ddb043b7fb062465723dfd8b34e2771e5dd
14_glass 214 7 9 10755 aa7a8db1d475ba01a10488af454bc15220a3d5951b010b03b7020567d8152cdc
18_Ionosphere 351 32 126 42913 bca46cb0cfd1bf9ddef6cde5ad2215d54fb0189508d0d4c4eb98e788cad69001
20_letter 1600 32 100 23946 f986d3da80cf1fa2aea83a5ebe73b7d4800e0d4c01fdd1ae074b58d20f10d039
22_magic.gamma 19020 10 6688 1296704 0be375984d7af9ea7a63b12206c240840d8b7daa3607021c5fb8756407dd86f1
23_mammography 11183 6 260 166764 a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea
25_musk 3062 166 97 736255 2ed3f4392197b76a1e59116ff880c7720a4b026cf4842073a53b56fdea265017
26_optdigits 5216 64 150 197633 60de17a375a278ba220a7849727d998aa02b5e2f9fd17732a004bba28de4656e
28_pendigits 6870 16 156 653509 c4936b89dcdad59d303020e492f763a0f54170080d787c77497609acbb9c2d79
29_Pima 768 8 268 11023 215454bb263a2f040945c9ea7bd7f06f1e89a61a3143bdb6f196e3887e801a7d
30_satellite 6435 36 2036 129874 1f048f5686f1b8c16a227fdfa3c81a62cd9a92715714a6b24c69b1c5ad96b46e
31_satimage-2 5803 36 71 181405 1b056e357f801b8b20c3f380a30224a3c4088d7ed764ec5a24828dc9b1918d6f
35_SpamBase 4207 57 1679 152038 d0c46c7928e43f6496bcd06e09de0b70f6bc8143792dfa0a43f450263d254e9b
38_thyroid 3772 6 93 39882 8de161b3f235b7647bb0b39a836d983ff61d67bf234edac461da2d71e889cb87
40_vowels 1456 12 50 134268 4bfc4244d1c882773bbbc50d4a5db5e52276e53506e46b2d45e02d074cfcb1b6
43_WDBC 367 30 10 46770 78d4606a1ab516f5b60b00c196497f3bbd6bd5e4548fd04cf5f2475209b34b85
"""


@dataclass(frozen=True)
class TableInfo(TextInfo):
    """A named table in one .npz file: X, numbers, and y, 1 for abnormal samples and 0 for others.

    samples   rows of X
    features  columns of X
    abnormal  number of abnormal samples

    Example:
        >>> table = next(iter(lb.data.TABLES.values()))
        >>> 0 < table.abnormal < table.samples
        True
    """

    samples: int
    features: int
    abnormal: int


def _infos() -> list[TableInfo]:
    found = []
    for line in _FILES.split("\n")[1:-1]:
        stem, samples, features, abnormal, size, sha256 = line.split()
        title = stem.split("_", 1)[1]
        name = f"adbench-{title.lower().replace('.', '-')}"
        file = FileInfo(f"{stem}.npz", sha256, int(size))
        note = "as ADBench has it (Han and others, 2022)"
        counts = (int(samples), int(features), int(abnormal))
        found.append(TableInfo(name, title, file, (f"{_FOLDER}{file.name}",), note, *counts))
    return found


TABLES: dict[str, TableInfo] = {info.name: info for info in _infos()}
