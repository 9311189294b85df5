"""Record the code and the data files of the project that each stage uses while it runs.

    python -m tests.flows.code_trace FOLDER smoke "workers=1"

runs the pipeline and writes ``FOLDER/<stage>.<number>.json`` for each run of a stage. All modules
are imported first, and what functions have cached is forgotten before each stage, so a stage
executes all that it needs itself. Trainers are traced in their own processes.
"""

import json
import os
import pkgutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract.code_digests import PROJECT_PACKAGES

PACKAGE_FOLDERS = tuple(f"{PROJECT_ROOT / package}{os.sep}" for package in PROJECT_PACKAGES)
CONTRACT_FOLDER = f"{PROJECT_ROOT / 'tasks' / 'contract'}{os.sep}"

#: Paths of opened files, while a stage is traced.
opened_files = None


def note_opened_file(event, arguments):
    if event == "open" and opened_files is not None and isinstance(arguments[0], str):
        opened_files.add(arguments[0])


sys.addaudithook(note_opened_file)


@contextmanager
def trace_project_code(record):
    """Collect the (file, line) of the functions that are called, and the data files opened."""
    global opened_files
    codes = {}

    def note_call(frame, event, argument):
        if frame.f_code.co_name != "<module>":
            codes[id(frame.f_code)] = frame.f_code

    opened_files = set()
    previous_trace = sys.gettrace()
    threading.settrace(note_call)
    sys.settrace(note_call)
    try:
        yield
    finally:
        sys.settrace(previous_trace)
        threading.settrace(previous_trace)
        # The code of a template has the path of the template.
        used_code = {(code.co_filename, code.co_firstlineno) for code in codes.values()}
        used_files = opened_files | {path for path, _ in used_code if path.endswith(".html")}
        record["code"] = sorted(
            (path, line)
            for path, line in used_code
            if is_project_file(path) and path.endswith(".py")
        )
        record["files"] = sorted(
            path
            for path in used_files
            if is_project_file(path) and not path.endswith((".py", ".pyc"))
        )
        opened_files = None


def is_project_file(path):
    """Return whether a file is in one of the project's packages, except the contract."""
    return path.startswith(PACKAGE_FOLDERS) and not path.startswith(CONTRACT_FOLDER)


def import_all_modules():
    for package_name in PROJECT_PACKAGES:
        package = import_module(f"hallmark.{package_name}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name != "hallmark.flows.deployment_entrypoint":  # runs when it is imported
                import_module(info.name)


def clear_function_caches():
    """Forget what the project's functions have cached."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) and is_project_file(module.__file__):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and value.__module__ == name:
                    value.cache_clear()


def run_pipeline(folder, config, *overrides):
    import_all_modules()
    from hallmark.flows.pipeline import pipeline
    from hallmark.tasks.contract import STAGES
    from hallmark.tasks.contract.external_inputs import ExternalInputMonitor
    from hallmark.tasks.training import trainer_process

    name_by_body = {stage.body: name for name, stage in STAGES.items()}
    run_body, current_stage = ExternalInputMonitor.run_body_and_check_unchanged, ""

    def run_traced_body(self, body, /, **arguments):
        nonlocal current_stage
        current_stage = name_by_body[body]

        def traced_body(**arguments):
            with trace_project_code(record):
                body(**arguments)

        clear_function_caches()
        record = {"external_digests": [*self.external_digests.values()]}
        run_body(self, traced_body, **arguments)
        save(folder, current_stage, record)

    def start_traced_trainer(command, **options):
        [python, _, module, *arguments] = command
        assert module == "hallmark.model.training.run"
        traced_command = [python, "-m", __spec__.name, str(folder), "--trainer", current_stage]
        environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}
        return subprocess.Popen([*traced_command, *arguments], env=environment, **options)

    ExternalInputMonitor.run_body_and_check_unchanged = run_traced_body
    trainer_process.subprocess = SimpleNamespace(Popen=start_traced_trainer, PIPE=subprocess.PIPE)
    pipeline.fn(config=config, overrides=overrides, store=str(folder / "store"))


def run_trainer(folder, stage_name, *arguments):
    import_all_modules()
    from hallmark.model.training import run

    record = {"external_digests": []}
    with trace_project_code(record):
        exit_code = run.main(list(arguments))
    save(folder, f"{stage_name}.trainer", record)
    sys.stdout.flush()
    os._exit(exit_code)


def save(folder, name, record):
    """Save a record; a stage may run several times."""
    number = len([*folder.glob(f"{name}.*.json")])
    (folder / f"{name}.{number}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    trace_folder, first, *rest = sys.argv[1:]
    if first == "--trainer":
        run_trainer(Path(trace_folder), *rest)
    else:
        run_pipeline(Path(trace_folder), first, *rest)
