"""An MLflow server: the requests of MLflow's client over HTTP, answered from MLflow's own file store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos import service_pb2
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.tracking.file_store import FileStore
from mlflow.utils.proto_json_utils import message_to_json, parse_dict

# MLflow has no types.
file_store: Any = FileStore
parse: Any = parse_dict

_REQUESTS = {
    "experiments/get-by-name": service_pb2.GetExperimentByName, "experiments/create": service_pb2.CreateExperiment,
    "experiments/get": service_pb2.GetExperiment, "runs/create": service_pb2.CreateRun, "runs/get": service_pb2.GetRun,
    "runs/update": service_pb2.UpdateRun, "runs/log-batch": service_pb2.LogBatch,
}  # fmt: skip


class Server:
    """A server that can go away.

    Attributes:
        store: What clients logged.
        uri: For `MLFLOW_TRACKING_URI`.
        answers: Cleared, requests wait for an answer for ever.
        breaks: Set, requests are answered with an error.
    """

    def __init__(self, folder: Path) -> None:
        self.store = file_store(str(folder))
        self.answers, self.breaks = threading.Event(), threading.Event()
        self.answers.set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def runs(self) -> list[Any]:
        """Return the runs of all experiments, the oldest first."""
        experiments = [one.experiment_id for one in self.store.search_experiments()]
        return sorted(self.store.search_runs(experiments, "", 1), key=lambda run: run.info.start_time)

    def steps(self, run: Any, metric: str = "return/mean") -> list[int]:
        """Return the steps at which a metric of a run was logged."""
        return [one.step for one in self.store.get_metric_history(run.info.run_id, metric)]

    def close(self) -> None:
        """Refuse connections from now on."""
        self._http.shutdown()
        self._http.server_close()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(dict(parse_qsl(urlsplit(self.path).query)))

            def do_POST(self) -> None:
                self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _reply(self, fields: dict[str, Any]) -> None:
                server.answers.wait()
                route = urlsplit(self.path).path.partition("/mlflow/")[2]
                try:
                    if server.breaks.is_set():
                        raise MlflowException("the disk is full")
                    message = _REQUESTS[route]()
                    parse(fields, message)
                    status, body = 200, message_to_json(server.answer(route, message))
                except MlflowException as error:
                    refusal: Any = error
                    status, body = refusal.get_http_status_code(), refusal.serialize_as_json()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def answer(self, route: str, request: Any) -> Any:
        """Return the response to a request."""
        response, store = type(request).Response(), self.store
        if route == "experiments/create":
            response.experiment_id = store.create_experiment(request.name)
        elif route.startswith("experiments/"):
            by_name = route.endswith("name")
            found = (
                store.get_experiment_by_name(request.experiment_name)
                if by_name
                else store.get_experiment(request.experiment_id)
            )
            if found is None:
                raise MlflowException("no such experiment", RESOURCE_DOES_NOT_EXIST)
            response.experiment.MergeFrom(found.to_proto())
        elif route == "runs/create":
            tags = [RunTag(one.key, one.value) for one in request.tags]
            made = store.create_run(
                request.experiment_id, request.user_id, request.start_time, tags, request.run_name
            )
            response.run.MergeFrom(made.to_proto())
        elif route == "runs/get":
            response.run.MergeFrom(store.get_run(request.run_id).to_proto())
        elif route == "runs/update":
            store.update_run_info(request.run_id, request.status, request.end_time, request.run_name or None)
        else:
            metrics = [Metric.from_proto(one) for one in request.metrics]
            store.log_batch(request.run_id, metrics, [Param.from_proto(one) for one in request.params], [])
        return response


@contextmanager
def mlflow_server(folder: Path) -> Iterator[Server]:
    """Serve from a folder."""
    server = Server(folder)
    try:
        yield server
    finally:
        server.close()
