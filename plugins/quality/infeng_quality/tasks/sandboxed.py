"""The sandbox's program: ``python -I -S sandboxed.py FD`` reads {"program", "tests", ...} from its input, and judges.

One process runs the program, another its tests (``judging.py``); only the second can write a verdict to FD. Before
that, both give up the network, other processes, the files of this machine, privileges and resources, and report on FD
how far this succeeded. This file is a program: it imports only the standard library, not the package.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
import judging  # type: ignore[import-not-found]
import wire  # type: ignore[import-not-found]

del sys.path[0]

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (1 << bit for bit in (17, 26, 27, 28, 29, 30))
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITIES_3 = 0x20080522
NOBODY = 65534
SYSTEM = ("/usr", "/lib", "/lib64")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
WORK = "/work"
LIBC = ctypes.CDLL(None, use_errno=True)


def enter_namespaces() -> bool:
    """Enter new namespaces of network, mounts, IPC, host name and, for children, processes; return whether allowed."""
    uid, gid = os.getuid(), os.getgid()
    kinds = NEW_NS | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET
    if LIBC.unshare(kinds | (NEW_USER if uid else 0)) != 0:
        return False
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    return True


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2); raises OSError."""
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def enter_own_root(folder: str) -> None:
    """Make ``folder`` the root, with the system's and Python's libraries, read-only, and an empty WORK.

    It has no /proc, /sys, /tmp or /home. Raises OSError.
    """
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    library = [path for path in sys.path if os.path.isdir(path)]  # noqa: PTH112
    for path in (*SYSTEM, *library, *DEVICES):
        bind(path, folder)
    attributes = struct.pack("QQQQ", ATTR_RDONLY, 0, 0, 0)
    os.mkdir(folder + WORK)  # noqa: PTH102
    if LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, folder.encode(), AT_RECURSIVE, attributes, len(attributes)) != 0:
        raise OSError(ctypes.get_errno(), "mount_setattr")
    mount("tmpfs", folder + WORK, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=0777")
    os.chroot(folder)
    os.chdir(WORK)
    os.environ.update(HOME=WORK, TMPDIR=WORK)


def bind(path: str, root: str) -> None:
    """Mount a folder or file, or copy a link, ``path`` under ``root``; do nothing if it does not exist."""
    target = root + path
    if not os.path.lexists(path) or os.path.lexists(target):  # inside a folder that is mounted already
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if os.path.islink(path):  # noqa: PTH114
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(path):  # noqa: PTH112
        os.mkdir(target)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    mount(path, target, "", MS_BIND | MS_REC)


def reach_library_by_descriptors() -> None:
    """Replace paths of modules, those of imported packages included, by open directories."""
    folders = [path for path in sys.path if os.path.isdir(path)]  # noqa: PTH112
    held = {path: f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_DIRECTORY)}" for path in folders}
    sys.path[:] = list(held.values())
    for module in list(sys.modules.values()):
        if isinstance(paths := getattr(module, "__path__", None), list):
            for old, new in held.items():
                paths[:] = [new + path[len(old) :] if path.startswith(f"{old}/") else path for path in paths]
    sys.path_importer_cache.clear()


def give_up_privileges(*, has_own_root: bool) -> None:
    """Drop all privileges for good; root, whom limits of processes do not bind, becomes the user nobody.

    Without a root of our own, the standard library may lie in folders that nobody cannot enter; open directories
    still give access.
    """
    if os.getuid() == 0:
        if not has_own_root:
            os.chown(".", NOBODY, NOBODY)
            reach_library_by_descriptors()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise root would own the links in /proc/self/fd
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    LIBC.capset(struct.pack("Ii", CAPABILITIES_3, 0), bytes(24))
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def limit(limits: dict[str, int]) -> None:
    """Limit CPU seconds, memory and files, and forbid new processes and threads."""
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))


def in_child() -> None:
    """Continue in a child that ends with its parent; the parent exits with the child's status."""
    child = os.fork()
    if not child:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    end_as(child)


def end_as(child: int) -> NoReturn:
    """Wait for a child and exit with its status."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def start_program() -> tuple[int, wire.Line]:
    """Start the process that will run the program; return its id and the line to it.

    It cannot know the tests, which are read later. With namespaces, it has its own process namespace, as a child of
    that namespace's first process, which it cannot signal.
    """
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(there[0])
        os.close(back[1])
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # forbids ptrace by processes of the same user
        return child, wire.Line(back[0], there[1])
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.close(there[1])
    os.close(back[0])
    in_child()
    line = wire.Line(there[0], back[1])
    null = os.open(os.devnull, os.O_RDWR)
    for taken in (0, 1, 2):
        os.dup2(null, taken)
    for held in range(3, 256):
        if held not in (line.reading, line.writing) and not _is_folder(held):
            _close(held)
    judging.serve(line, limit)
    os._exit(0)


def _is_folder(descriptor: int) -> bool:
    try:
        return os.path.isdir(descriptor)  # noqa: PTH112
    except OSError:
        return False


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def main() -> None:
    """Read a job from standard input and judge it."""
    answers = int(sys.argv[1])
    is_apart = has_own_root = False
    try:
        if is_apart := enter_namespaces():
            in_child()  # the first process of the namespace; all others in it end with this one
            enter_own_root(os.getcwd())  # noqa: PTH109
            has_own_root = True
            is_apart = LIBC.unshare(NEW_PID) == 0  # for the program
    except OSError:
        is_apart = False
    try:
        give_up_privileges(has_own_root=has_own_root)
    except OSError:
        is_apart = False  # root that cannot change its user id: limits of processes do not bind it
    program, line = start_program()
    os.write(answers, json.dumps({"apart": is_apart, "read_only": has_own_root}).encode() + b"\n")
    job = json.load(sys.stdin)
    limit(job["limits"])
    if judging.judge(line, job):
        os.write(answers, b"passed")
        os._exit(0)
    line.close()
    end_as(program)


main()
