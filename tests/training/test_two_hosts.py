"""Processes on two hosts (network namespaces): one is killed, the other stops, both resume to the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from test_distributed import free_port

HERE = Path(__file__).parent
LONG = {"steps": 24, "save_every": 3, "evaluate_every": 20}
AT, SAVED = 19, 9
"""The batch of the second process, two a step, at which it is killed; and the last step saved before."""
KINDS = {"ddp": {}, "fsdp": {"sharded": True}, "context": {"context": 2}}
KILLED = {"send": "SIGKILL", "during": "batch", "times": AT}


def test_one_of_two_hosts_dies(hosts, server, memory, result_of):
    """Started as a user would without torchrun, and gloo is not told which network to take."""

    def start(out, where, address, **job):
        common = {"MASTER_ADDR": address, "MASTER_PORT": f"{free_port()}", "WORLD_SIZE": "2"}
        common |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        ranks = []
        for rank in range(2):
            own = {"environment": common | {"RANK": f"{rank}", "LOCAL_RANK": "0"}} | where[rank]
            if rank == 0:
                own["befall"] = {}
            ranks.append(server.start(out, kind="lm", recipe=LONG, **job | own))
        return [server.wait(rank) for rank in ranks]

    apart, together = [{"host": name} for name in hosts.names], [{}, {}]
    for kind, job in KINDS.items():
        whole, out = memory / f"{kind} whole", memory / kind
        assert [one.code for one in start(whole, together, "127.0.0.1", **job)] == [0, 0]
        began = time.monotonic()
        stopped, killed = start(out, apart, hosts.addresses[0], **job, befall=KILLED)
        assert killed.code == -signal.SIGKILL
        assert stopped.code == 2, stopped
        assert time.monotonic() - began < 60
        assert [line for line in stopped.lines if not line.startswith("[W")] == [  # torch finds no name for an address
            "process 0 of 2 waited in vain for another, which hangs or has died (JOFORMER_TIMEOUT is 1800 s): end them "
            "all, and the same command resumes from the last checkpoint"
        ]
        resumed = start(out, apart, hosts.addresses[0], **job)
        assert [one.code for one in resumed] == [0, 0], resumed
        assert resumed[0].lines[-1] == f"resuming {out} at step {SAVED} of {LONG['steps']}"
        assert result_of(out) == result_of(whole), kind


def test_torchrun_restarts_what_was_killed(hosts, server, memory, result_of):
    """Its agents keep one store for all attempts: the second must not meet the addresses of the first."""
    job = {"kind": "lm", "recipe": LONG, "sharded": True, "befall": KILLED, "victim": "1"}
    out = memory / "elastic"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    started = []
    try:
        for number, (name, address) in enumerate(zip(hosts.names, hosts.addresses)):
            words = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", "--monitor-interval", "0.1"]
            words += ["--rdzv-backend", "c10d", "--rdzv-id", "run", "--rdzv-endpoint", f"{hosts.addresses[0]}:29500"]
            words += ["--rdzv-conf", f"is_host={1 - number}", "--local-addr", address]
            words += [str(HERE / "rank.py"), json.dumps(job | {"out": str(out)})]
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *words]
            with open(memory / f"said.{number}", "w") as said:
                started.append(
                    subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
                )
        codes = [process.wait(400) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()  # which ends its worker, too
                process.wait(60)
    said = "".join((memory / f"said.{number}").read_text() for number in (0, 1))
    assert codes == [0, 0], said
    assert "process 0 of 2 waited in vain for another, which hangs or has died" in said
    assert f"resuming {out} at step {SAVED} of " in said
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}", "WORLD_SIZE": "2"}
    ranks = [
        server.start(
            memory / "whole",
            kind="lm",
            recipe=LONG,
            sharded=True,
            environment=common | {"RANK": f"{rank}", "LOCAL_RANK": "0"},
        )
        for rank in range(2)
    ]
    assert [server.wait(rank).code for rank in ranks] == [0, 0]
    assert result_of(out) == result_of(memory / "whole")
