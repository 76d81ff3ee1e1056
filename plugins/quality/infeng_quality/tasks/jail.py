"""What the sandbox starts: ``python -I -S jail.py FD`` reads {"program", "tests", ...} from its input, and judges.

Two processes: in one the program runs, in the other its tests (``judging.py``), which alone can write a verdict to FD.
Before that both give up the network, other processes, the files of this machine, privileges and resources, and say on
FD what they could give up. Standard library alone, and no import of the package: this file is a program.
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
    """Leave network, mounts, queues, names and, with the next child, the processes of this machine, where we may."""
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
    """Mount, or raise OSError."""
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def enter_own_root(folder: str) -> None:
    """Make ``folder`` the root, in which are the system's and Python's libraries, read-only, and an empty WORK.

    No /proc, /sys, /tmp or /home is there. Raises OSError.
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
    """Show ``path`` under ``root``: a folder, a file, or a link as it is; nothing where it is not there."""
    target = root + path
    if not os.path.lexists(path) or os.path.lexists(target):  # of folders inside others the outer ones come first
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
    """Let modules be found through open directories, those of packages that are imported already as well."""
    folders = [path for path in sys.path if os.path.isdir(path)]  # noqa: PTH112
    held = {path: f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_DIRECTORY)}" for path in folders}
    sys.path[:] = list(held.values())
    for module in list(sys.modules.values()):
        if isinstance(paths := getattr(module, "__path__", None), list):
            for old, new in held.items():
                paths[:] = [new + path[len(old) :] if path.startswith(f"{old}/") else path for path in paths]
    sys.path_importer_cache.clear()


def give_up_privileges(*, has_own_root: bool) -> None:
    """Be nobody where this is root, whom limits of processes do not bind, and never gain anything again.

    Without a root of our own the standard library may lie where nobody can go; a descriptor leads there all the same.
    """
    if os.getuid() == 0:
        if not has_own_root:
            os.chown(".", NOBODY, NOBODY)
            reach_library_by_descriptors()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else these links were root's
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    LIBC.capset(struct.pack("Ii", CAPABILITIES_3, 0), bytes(24))
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def limit(limits: dict[str, int]) -> None:
    """Bound processor seconds, memory and files, and let no process or thread be started."""
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))


def in_child() -> None:
    """Go on in a child, which ends with us; we end as it does."""
    child = os.fork()
    if not child:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    end_as(child)


def end_as(child: int) -> NoReturn:
    """Wait for a child and end as it did."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def start_program() -> tuple[int, wire.Line]:
    """Start the process in which the program will run; return its id and the line to it.

    It knows nothing of the tests: they are read behind this. Where there are namespaces, it is in one of its own, as a
    child of its first process, whom it cannot signal.
    """
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(there[0])
        os.close(back[1])
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody of the same user looks into us
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
    """Judge what comes on standard input."""
    answers = int(sys.argv[1])
    is_apart = has_own_root = False
    try:
        if is_apart := enter_namespaces():
            in_child()  # the first process of its namespace, with whom all others in it end
            enter_own_root(os.getcwd())  # noqa: PTH109
            has_own_root = True
            is_apart = LIBC.unshare(NEW_PID) == 0  # for the program
    except OSError:
        is_apart = False
    try:
        give_up_privileges(has_own_root=has_own_root)
    except OSError:
        is_apart = False  # root without the right to be somebody else: limits of processes do not bind it
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
