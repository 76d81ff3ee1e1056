"""An oracle that answers at once: it shows how the other side of the protocol behaves, without an environment."""

import json
import sys

THREADS = int(sys.argv[sys.argv.index("--threads") + 1])
TYPES = {"linear": ["f32"], "attention": ["f32"], "experts": ["int4", "int8"]}
print(json.dumps({"ready": True, "engine": "torch", "version": "0", "types": TYPES}))
sys.stdout.flush()
made = 0
for line in sys.stdin:
    request = json.loads(line)
    if "make" in request:
        answer = {"id": made, "name": "f32", "calls": 2, "nbytes": 64}
        made += 1
    elif "run" in request:
        answer = {"seconds": 0.5 / THREADS}
    else:
        answer = {}
    print(json.dumps(answer), flush=True)
