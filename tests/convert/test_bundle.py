"""Modules as one file compute what Python makes of them as they lie; what cannot be one file is refused by line."""

import importlib
import sys
import textwrap
from types import ModuleType

import pytest

from lightning_dar.convert.bundle import Variable, bundle
from lightning_dar.errors import UsageError

SAME = {
    "relative": {
        "lab/__init__.py": "",
        "lab/main.py": "from .helper import half\nfrom . import sub\n\ndef answer():\n    return half(8) + sub.two()",
        "lab/helper.py": "def half(x):\n    return x / 2",
        "lab/sub/__init__.py": "from .deep import two",
        "lab/sub/deep.py": "from ..helper import half\n\ndef two():\n    return half(4)",
    },
    "module attributes and a local name like theirs": {
        "main.py": """
            import my_helper
            import my_helper as mh
            import pkg.sub
            import pkg.other as other

            class Thing(mh.Base):
                value = my_helper.half(6)

            def answer():
                half = mh.half(10)
                return half, Thing().base(), Thing.value, pkg.sub.triple(2), other.NAME, pkg.TOP
            """,
        "my_helper.py": "class Base:\n    def base(self):\n        return 'base'\n\ndef half(x):\n    return x / 2",
        "pkg/__init__.py": "TOP = 'top'",
        "pkg/sub.py": "import my_helper\n\ndef triple(x):\n    return 6 * my_helper.half(x)",
        "pkg/other.py": "NAME = 'other'",
    },
    "names that collide": {
        "main.py": """
            from a import value as of_a
            from b import value as of_b
            from torch import nn as F
            State = tuple[int, "Shape"]
            Shape = 3

            def answer(Shape=Shape):
                def inner(value):
                    global Shape
                    Shape = 9
                    return value, Shape
                return of_a(), of_b(), inner(4), F.__name__, State
            """,
        "a.py": """
            from torch.nn import functional as F
            Shape, _log = 1, 'a'
            State = 'a'

            def value():
                '''Shape of a.'''
                return Shape, _log, F.__name__, [State for Shape in range(2)], f"{Shape} of {State!r}", print.__name__
            """,
        "b.py": """
            Shape, _log = 2, 'b'

            class State:
                Shape = 5

                def get(self, print=7):
                    return Shape, self.Shape, print, (lambda Shape: Shape)(8)

            def print(text):
                return text

            def value():
                try:
                    raise ValueError(_log)
                except ValueError as Shape:
                    return str(Shape), State().get(), print('b'), max([_log for _log in 'xy'])
            """,
    },
    "star imports": {
        "main.py": "from things import *\nfrom math import *\n\n"
        "def answer():\n    return one(), TWO, floor(pi), pow(2, 3)",
        "things.py": "from math import pi\nfrom more import *\n__all__ = ['one', 'TWO', 'pow']\nTWO = 2\n"
        "def one():\n    return more()\ndef pow(a, b):\n    return 'mine'",
        "more.py": "def more():\n    return pow(3, 2)",
    },
    "imports in functions": {
        "main.py": """
            def answer():
                from helper import half, flag as state
                import helper
                import math
                def nested(flag):
                    from helper import half as again
                    return again(flag), helper.half(1)
                return half(3), state, nested(2), math.floor(1.5), base()

            def base():
                half = 7
                from helper import half as other
                return half, other(half)
            """,
        "helper.py": "import main\nflag = 'flag'\n\ndef half(x):\n    return x / 2, main.base.__name__",
    },
    "alternatives": {
        "main.py": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from no_such_package import Thing
                from heavy import Heavy
            try:
                from fast import double
            except ImportError:
                from slow import double
            try:
                import no_such_package
            except ImportError:
                no_such_package = None
            if double(1) == 2:
                from slow import sign
            else:
                sign = None

            def answer(thing: "Heavy | Thing" = 3):
                return double(thing), no_such_package, sign()
            """,
        "fast.py": "import no_such_compiler\n\ndef double(x):\n    return 'fast'",
        "slow.py": "def double(x):\n    return x * 2\n\ndef sign():\n    return 1",
        "heavy.py": "raise RuntimeError('never imported')",
    },
    "a file called as one of Python's": {
        "main.py": "from this import half\nimport collections.abc, os\n\n"
        "def answer():\n    return half(2), collections.abc.Sized.__name__, os.sep\n\n"
        "if __name__ == '__main__':\n    import no_such_package, heavy\n",
        "this.py": "def half(x):\n    return x / 2",
    },
    "modules that need each other": {
        "main.py": "import other\n\nclass Base:\n    pass\n\n"
        "def answer():\n    return other.make().__class__.__mro__[1] is Base, other.sub.NAME, other.sub.deep.value()",
        "other/__init__.py": "from . import sub\n\ndef make():\n    from .made import Made\n    return Made()",
        "other/sub/__init__.py": "NAME = 'sub'\nfrom . import deep",
        "other/sub/deep.py": "from .. import sub\n\ndef value():\n    return sub.NAME * 2",
        "other/made.py": "from main import Base\n\nclass Made(Base):\n    pass",
    },
    "a counter": {
        "main.py": "import counter\nfrom counter import count, step\n\n"
        "def answer():\n    step()\n    step()\n    return count, counter.count",
        "counter.py": "count = 0\n\ndef step():\n    global count\n    count += 1",
    },
    "annotations": {
        "main.py": """
            from __future__ import annotations
            import dataclasses, typing
            import other

            @dataclasses.dataclass
            class State:
                later: Later
                plain: int = 3
                theirs: other.State | None = None

            class Later:
                pass

            def answer():
                hints = typing.get_type_hints(State)
                return hints["later"].__name__, hints["plain"], typing.get_args(hints["theirs"])[0].mark, State(1).plain
            """,
        "other.py": """
            class State:
                mark = "other"

                def more(self) -> "State":
                    pass
            """,
    },
    "names in class bodies and texts": {
        "main.py": "from helper import limit\n\ndef answer():\n    return limit(), size()\n\n"
        "def size():\n    return globals()['width']\n\nwidth = 3",
        "helper.py": """
            bound = 4

            class Limit:
                bound = bound + 1

            def width():
                return "helper"

            def limit():
                match [Limit.bound, bound]:
                    case [first, *rest] if (total := first):
                        return total, rest, width()
            """,
    },
    "one line, and comments": {
        "main.py": "if True: from helper import half as h; x = 1\n"
        "from helper import (  # of theirs\n    half,\n    TEXT,  # ü\n)\n\n"
        "def answer(): return h(x), half(2), TEXT, 'ü', TEXT",
        "helper.py": "import os.path, os\nhalf = lambda x: x / 2  # ü\nTEXT = os.path.join('ü', '1')",
    },
    "a file called as one of ours": {
        "main.py": "from errors import UsageError\nfrom lightning_dar.errors import DataError\n"
        "import lightning_dar.errors\n\n"
        "def answer():\n    return UsageError, DataError.__mro__[1], lightning_dar.errors.UsageError.__mro__[1]",
        "errors.py": "UsageError = 'theirs'",
    },
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes modules that can be imported; `gone` makes them, and this package, as if they were not there."""
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)

    def write(texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.import_module(next(name for name in texts if "main" in name)[:-3].replace("/", "."))

    yield write
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def bundled(entry, roots=()):
    return bundle(entry, {"lightning_dar", *roots}, {}, {Variable(entry, "answer")}, "lightning_dar")


def answer_alone(text, tmp_path, monkeypatch):
    """What the text answers as a module, where nothing else of the test, or of this package, can be imported."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
        for name, module in list(sys.modules.items()):
            if str(tmp_path) in str(getattr(module, "__file__", "")) or name.startswith("lightning_dar"):
                patch.setitem(sys.modules, name, None)
        alone = ModuleType("alone")
        patch.setitem(sys.modules, "alone", alone)
        exec(compile(text, "alone.py", "exec"), alone.__dict__)
        return repr(alone.answer())


@pytest.mark.parametrize("name", SAME)
def test_one_file_computes_the_same(name, files, monkeypatch, tmp_path):
    main = files(SAME[name])
    text = bundled(main.__name__).text
    assert answer_alone(text, tmp_path, monkeypatch) == repr(main.answer()), text


def test_the_text_keeps_its_form_and_names_the_packages(files):
    main = files(
        {
            "main.py": '"""Of main."""\n\nimport torch\nimport yaml  # a package\nfrom helper import half\n\n\n'
            "def answer():\n    # why\n    return half( 2 )\n",
            "helper.py": "import torch\n\n\ndef half(x):\n    return torch.tensor(x) / 2\n",
        }
    )
    made = bundled(main.__name__)
    assert made.text == (
        "# -------------------- helper\n\nimport torch\n\n\ndef half(x):\n    return torch.tensor(x) / 2\n\n\n"
        '# -------------------- main\n\n"""Of main."""\n\nimport yaml  # a package\n\n\n'
        "def answer():\n    # why\n    return half( 2 )\n"
    )
    assert (made.modules, made.packages) == (["helper", "main"], {"torch", "yaml"})


REFUSED = {
    "where it lies": ("TABLE = open(__file__)", "main, line 1 asks where it lies (__file__)"),
    "resources": ("\nfrom importlib import resources", "main, line 2 reads files of its package (importlib.resources)"),
    "pkgutil": ("import pkgutil\nX = pkgutil.get_data", "main, line 1 reads files of its package (pkgutil)"),
    "computed": (
        "import importlib\ndef answer():\n    return importlib.import_module('hel' + 'per')",
        "main, line 3 imports by a name that it computes (importlib.import_module)",
    ),
    "dunder import": ("X = __import__('helper')", "main, line 1 imports by a name that it computes (__import__)"),
    "module value": (
        "import helper\nX = [helper]",
        "main, line 2 uses the module 'helper' in a way that cannot travel",
    ),
    "set from outside": ("import helper\nhelper.half = 3", "main, line 2 uses the module 'helper' in a way"),
    "not in the text": (
        "import helper\nX = helper.late",
        "main, line 2 uses the module 'helper' in a way that cannot travel; use names that its text defines",
    ),
    "imported late": (
        "from helper import late",
        "main, line 1 imports 'late' of 'helper', whose text does not define it",
    ),
    "either module": (
        "try:\n    import helper as h\nexcept ImportError:\n    import other as h\nX = h.half",
        "'h' may be something else than a module too",
    ),
    "module getattr": ("def __getattr__(name):\n    return 1", "main, line 1 defines names while a program runs"),
    "like an import": (
        '"""\nfrom .helper import half\n"""',
        "'from .helper import half' reads like an import",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_is_named(name, files):
    text, says = REFUSED[name]
    helper = "def half(x):\n    return x / 2\n\nglobals()['late'] = 1"
    files({"main.py": text, "helper.py": helper, "other.py": ""})
    with pytest.raises(UsageError, match="^--format hf: ") as caught:
        bundled("main")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_compiled_module_is_named(files, tmp_path):
    (tmp_path / "quick.pyc").write_bytes(b"")
    files({"main.py": "def answer():\n    import quick"})
    with pytest.raises(UsageError, match=r"module 'quick' \(.*quick.pyc\) has no Python source, so it cannot travel"):
        bundled("main")
