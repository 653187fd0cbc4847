"""A Slurm of one machine in four small programs, for the PATH of a test: sbatch, srun, sacct and scancel.

Its folder has a file for each job, `ID.state`, and counts submissions in `submitted`. If `full` exists, sbatch removes it and
refuses once. If `lose` exists, the next job removes it and ends in the state that it names, or dies with its machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = f"""#!{sys.executable}
import os, pathlib, re, signal, subprocess, sys
here = pathlib.Path(__file__).parent
"""
SBATCH = """
if (here / "full").exists():
    (here / "full").unlink()
    sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
number = int((here / "submitted").read_text()) + 1 if (here / "submitted").exists() else 1
(here / "submitted").write_text(str(number))
script = sys.argv[-1]
array = re.search(r"--array='?0-([0-9]+)", pathlib.Path(script).read_text())
for index in range(int(array[1]) + 1 if array else 1):
    subprocess.Popen([sys.executable, str(here / "node.py"), script, str(number), str(index) if array else ""],
                     start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(f"Submitted batch job {number}")
"""
NODE = """
script, number, index = sys.argv[1:]
name = f"{number}_{index}" if index else number
state = here / f"{name}.state"
env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0",
       "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "localhost"}
if index:
    env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
if (here / "lose").exists():
    why = (here / "lose").read_text() or "NODE_FAIL"
    (here / "lose").unlink()
    state.write_text(why)
    sys.exit()
process = subprocess.Popen(["bash", script], env=env, start_new_session=True)
(here / f"{name}.pid").write_text(str(process.pid))
state.write_text("RUNNING")
code = process.wait()
state.write_text("COMPLETED" if code == 0 else "FAILED")
"""
SRUN = """
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2 if words[0] in ("--output", "--error") else 1:]
os.execvp(words[0], words)
"""
SACCT = """
print("JobID|State|NodeList")
for path in here.glob("*.state"):
    if path.stem.split("_")[0] in sys.argv:
        print(f"{path.stem}|{path.read_text()}|localhost")
"""
SCANCEL = """
os.killpg(int((here / f"{sys.argv[1]}.pid").read_text()), signal.SIGTERM)
"""


def install(folder: Path) -> Path:
    """Write the programs into a folder."""
    folder.mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL, "node.py": NODE}
    for name, text in programs.items():
        (folder / name).write_text(HEAD + text)
        (folder / name).chmod(0o755)
    return folder
