"""What two processes run in test_distributed.py: `torchrun two.py FOLDER JOB…`, a JOB as JSON; losses go to FOLDER."""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch
from runner import config_of, lm_task, recipe_of, vit_task


def main() -> None:
    """Train each job in turn, the same in every process; an error is written down and the next job begun."""
    from joformer._log import to_console
    from joformer.training import Stopped, train

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(1)
    results = []
    for text in sys.argv[2:]:
        job = json.loads(text)
        task = {"lm": lm_task, "vit": vit_task}[job["kind"]]()
        if job.get("poison") == int(os.environ["RANK"]):
            usual = task.loss
            task.loss = lambda model, batch, usual=usual: usual(model, batch) * torch.nan
        try:
            config, recipe = config_of(job["kind"], job.get("config", {})), recipe_of(job.get("recipe", {}))
            with to_console():  # in both: only the first has something to report
                more = {"shard": bool(job.get("sharded")), "context_parallel": job.get("context", 1)}
                results.append({"result": train(config, task, recipe, job["out"], **more)})
        except (ValueError, Stopped) as error:
            results.append({"error": str(error)})
    with open(f"{sys.argv[1]}/results.{os.environ['RANK']}.json", "w") as file:
        json.dump(results, file)
    torch.distributed.barrier()
    # Not through the interpreter's end: once in ten times a thread of gloo's asks for the GIL there, and aborts.
    os._exit(0)


if __name__ == "__main__":
    main()
