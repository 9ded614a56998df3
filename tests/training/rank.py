"""A process of test_two_hosts.py: `torchrun rank.py JOB`, a JOB as JSON; what befalls `victim` does so only once."""

import json
import os
import sys

import torch
from runner import lm_task, work

job = json.loads(sys.argv[1])
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) != (job["victim"], "0"):
    del job["befall"]
torch.set_num_threads(1)
code = work(job, lm_task())
sys.stderr.flush()
os._exit(code)  # past the interpreter's own end, where gloo's threads now and then abort
