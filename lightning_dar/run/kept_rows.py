"""Going on in the metrics.csv of a run, where Lightning's CSVLogger would delete it."""

import csv
import io
import os

from lightning.pytorch.loggers.csv_logs import ExperimentWriter


class KeptRows(ExperimentWriter):
    """Lightning's writer of metrics.csv, which keeps the rows of the first `steps` optimizer steps (Lightning counts
    them from 0) and drops the later ones, as those steps are done again."""

    def __init__(self, log_dir: str, steps: int):
        super().__init__(log_dir)
        if not self._fs.isfile(self.metrics_file_path):
            return
        with self._fs.open(self.metrics_file_path, "r", newline="") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut off the last row
        reader = csv.DictReader(io.StringIO(whole))
        rows = [row for row in reader if int(row["step"]) < steps]
        self.metrics_keys = list(reader.fieldnames or [])
        partial = os.path.join(log_dir, f".{self.NAME_METRICS_FILE}")
        with self._fs.open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        self._fs.mv(partial, self.metrics_file_path)  # whole, whatever ends the process before it

    def _check_log_dir_exists(self) -> None:
        """Overrides Lightning's, which deletes the file."""
