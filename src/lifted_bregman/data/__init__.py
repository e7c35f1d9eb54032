"""Data sets by name, verified by hash, and small recorded transforms of them.

data = lb.data.load("mnist-1k").apply(Centre(), Noise(0.3))
(X, Y), (X_test, Y_test) = data.pairs("denoise")
"""

from lifted_bregman.data._http import DownloadProgress, Timeouts
from lifted_bregman.data._places import cache_folder
from lifted_bregman.data.arrays import read_array
from lifted_bregman.data.dataset import DataSet
from lifted_bregman.data.fetch import get, verify, whereabouts
from lifted_bregman.data.loading import from_record, load, load_pictures, load_table, load_text
from lifted_bregman.data.naming import names
from lifted_bregman.data.pictures import PICTURES, PictureInfo
from lifted_bregman.data.preparation import Preparation
from lifted_bregman.data.registry import SETS, FileInfo, SetInfo, Stored, register
from lifted_bregman.data.samples import TASKS, Samples, Task
from lifted_bregman.data.streams import gathered
from lifted_bregman.data.tables import TABLES, TableInfo
from lifted_bregman.data.texts import TEXTS, TextInfo
from lifted_bregman.data.transforms import Centre, Noise, OneHot, Scale, Subset, Transform, Unflatten

__all__ = [
    "PICTURES",
    "SETS",
    "TABLES",
    "TASKS",
    "TEXTS",
    "Centre",
    "DataSet",
    "DownloadProgress",
    "FileInfo",
    "Noise",
    "OneHot",
    "PictureInfo",
    "Preparation",
    "Samples",
    "Scale",
    "SetInfo",
    "Stored",
    "Subset",
    "TableInfo",
    "Task",
    "TextInfo",
    "Timeouts",
    "Transform",
    "Unflatten",
    "cache_folder",
    "from_record",
    "gathered",
    "get",
    "load",
    "load_pictures",
    "load_table",
    "load_text",
    "names",
    "read_array",
    "register",
    "verify",
    "whereabouts",
]
