"""Programs that pass tests without solving them by manipulating the interpreter that runs them."""

CHEATS = {
    "an early exit": r"""
import sys; sys.exit(0)
""",
    "an exit without farewell": r"""
import os; os._exit(0)
""",
    "an exit in the function": r"""
import os
def f(x): os._exit(0)
""",
    "an exit of the system in the function": r"""
def f(x): raise SystemExit(0)
""",
    "an exit at the end": r"""
import atexit, os
atexit.register(os._exit, 0)
""",
    "the parent's frame": r"""
import sys
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
        if name == "line":
            value.send("ready"); value.send({"value": True})
    frame.f_locals.update(nonce=b"", verdict=True)
    frame = frame.f_back
def f(x): return None
""",
    "an equal to everything": r"""
class E:
    def __eq__(self, other): return True
    __ne__ = lambda s, o: False
def f(x): return E()
""",
    "an equal int": r"""
class E(int):
    def __eq__(self, other): return True
def f(x): return E(0)
""",
    "an equal list": r"""
class E(list):
    def __eq__(self, other): return True
def f(x): return E()
""",
    "a true that compares": r"""
class E(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return E()
""",
    "assertion errors that are none": r"""
import builtins
builtins.AssertionError = type('A', (Exception,), {'__new__': lambda *a: None})
def f(x): return None
""",
    "no compiler": r"""
import builtins
builtins.compile = lambda *a, **k: None
builtins.exec = lambda *a, **k: None
def f(x): return 0
""",
    "other names of Python": r"""
import builtins
for name in ('isinstance', 'type', 'len'): setattr(builtins, name, lambda *a: True)
def f(x): return None
""",
    "another judge": r"""
import judging
judging.judge = lambda *a: True
judging._unknown = lambda *a: set()
def f(x): return None
""",
    "another json": r"""
import json
json.dumps = lambda m, **k: '{"value": 4}' if 0 else '"ready"'
def f(x): return None
""",
    "all objects": r"""
import gc
for one in gc.get_objects():
    if isinstance(one, dict) and "tests" in one:
        one["tests"] = ""
def f(x): return None
""",
    "any descriptor": r"""
import os
for held in range(256):
    for said in (b"passed", b'00000007"ready"', b"passed\n"):
        try: os.write(held, said)
        except OSError: pass
def f(x): return None
""",
    "a verdict on every pipe of /proc": r"""
import glob
for path in glob.glob("/proc/*/fd/*"):
    try: open(path, "wb", 0).write(b"passed")
    except OSError: pass
def f(x): return None
""",
    "the memory of others": r"""
import ctypes, os
libc = ctypes.CDLL(None)
for pid in [os.getppid(), *range(1, 64)]:
    if libc.ptrace(16, pid, 0, 0) == 0: raise SystemError
    try: open(f"/proc/{pid}/mem", "r+b")
    except OSError: pass
def f(x): return None
""",
    "an end of the judge": r"""
import os
os.kill(os.getppid(), 15)
def f(x): return None
""",
    "a signal that leaves": r"""
import signal, os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, .01)
def f(x):
    while True: pass
""",
    "a trace": r"""
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
sys.excepthook = lambda *a: __import__('os')._exit(0)
def f(x): raise ValueError
""",
    "C's exit": r"""
import ctypes
ctypes.CDLL(None)._exit(0)
""",
    "another program": r"""
import os
os.execv('/usr/bin/true', ['true'])
""",
    "modules of its own": r"""
import sys, types
m = types.ModuleType('math'); m.isclose = lambda *a, **k: True
sys.modules['math'] = m
def f(x): return 0
""",
    "an answer to another question": r"""
def f(x): return [x, None, True, 4]
""",
    "the judge's name": r"""
__name__ = 'tests'
names = {'f': 1}
f = lambda x: NotImplemented
""",
    "no end": r"""
class L(list):
    def __iter__(self):
        while True: yield 1
def f(x): return L()
""",
    "a deep answer": r"""
def f(x):
    y = []
    for _ in range(10**5): y = [y]
    return y
""",
    "a long answer": r"""
def f(x): return 'x' * (1 << 28)
""",
}
"""{trick: program}; the task is a function ``f``."""

HARMLESS = ("an early exit", "an exit in the function", "the parent's frame", "an equal to everything", "another judge",
            "all objects", "assertion errors that are none", "C's exit", "a trace")  # fmt: skip
"""The programs that never touch another process."""
