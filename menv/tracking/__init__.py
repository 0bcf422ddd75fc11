"""What a run leaves on disk, and what reads it again: run folders, trackers, curves and reports.

`Algorithm.learn` calls `Tracker`s; a `RunFolder` is the one that writes `runs/<env>-<algo>-<NNN>/`. Nothing here knows
an algorithm: results are dicts, checkpoints are folders. Begin with `run_folder.py`.
"""

from menv.tracking.report import plot_runs as plot_runs
from menv.tracking.run_folder import CSV as CSV
from menv.tracking.run_folder import JSONL as JSONL
from menv.tracking.run_folder import Run as Run
from menv.tracking.run_folder import RunFolder as RunFolder
from menv.tracking.run_folder import next_run_dir as next_run_dir
from menv.tracking.services import MLflow as MLflow
from menv.tracking.services import WeightsAndBiases as WeightsAndBiases
from menv.tracking.tensorboard import TensorBoard as TensorBoard
from menv.tracking.tracker import Tracker as Tracker
