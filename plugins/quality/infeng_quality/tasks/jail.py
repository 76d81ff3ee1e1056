"""What runs in the sandbox's child: ``python -I -S jail.py FD`` reads {"program", "nonce", "limits"} from its input.

It gives up the network, other processes, writing to files, privileges and resources, says on FD what it could give up,
runs the program, and writes the nonce behind that: a program that leaves early, by whatever way, has not passed.
Standard library alone, and no import of the package: this file is a program.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys

NEW_NS, NEW_USER, NEW_PID, NEW_NET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
NOBODY = 65534
LIBC = ctypes.CDLL(None, use_errno=True)


def enter_namespaces() -> bool:
    """Leave the network, the mounts and, with the next child, the processes of this machine; False where we may not."""
    uid, gid = os.getuid(), os.getgid()
    if LIBC.unshare(NEW_NS | NEW_NET | NEW_PID | (NEW_USER if uid else 0)) != 0:
        return False
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    return True


def make_read_only(folder: str) -> bool:
    """Let nothing be written but in ``folder``, which is empty and in memory; returns whether that holds."""
    attributes = struct.pack("QQQQ", ATTR_RDONLY, 0, 0, 0)
    options = b"size=16m,mode=0777"
    return bool(
        LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, len(attributes)) == 0
        and LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options) == 0
    )


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


def give_up_privileges() -> None:
    """Be nobody where this is root, whom limits of processes do not bind, and never gain anything again.

    The standard library may lie where nobody can go; a descriptor leads there all the same.
    """
    if os.getuid() == 0:
        os.chown(".", NOBODY, NOBODY)
        reach_library_by_descriptors()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else these links were root's
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
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def main() -> None:
    """Run what comes on standard input."""
    answers = int(sys.argv[1])
    job = json.load(sys.stdin)
    is_apart = is_read_only = False
    try:
        if is_apart := enter_namespaces():
            in_child()  # the first process of its namespace, with whom all others in it end
            folder = os.getcwd()  # noqa: PTH109
            is_read_only = make_read_only(folder)
            os.chdir(folder)  # of the new file system
            in_child()  # whom the program cannot signal
    except OSError:
        is_apart = False
    try:
        give_up_privileges()
    except OSError:
        is_apart = False  # root without the right to be somebody else: limits of processes do not bind it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.write(answers, json.dumps({"apart": is_apart, "read_only": is_read_only}).encode() + b"\n")
    limit(job["limits"])
    nonce = job.pop("nonce").encode()
    sys.argv = ["program"]
    code = compile(job["program"], "program", "exec")
    exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    os.write(answers, nonce)
    os._exit(0)  # whatever the program has registered for the end does not run


main()
