"""Files are replaced whole; links, permissions, devices and inputs stay what they are; what cannot be written is refused before the work."""

import os
import stat
import threading

import numpy as np
import pytest

from stochgp import FeatureGPRegressor, GPRegressor
from stochgp.cli import main
from stochgp.data import write_table
from stochgp.storage.trees import load_tree, save_tree
from stochgp.storage.writing import check_can_write, replacing

X = np.random.default_rng(0).normal(size=(60, 2))
WRITERS = {
    "arrays": lambda path: save_tree(path, [X], {}),
    "table": lambda path: write_table(path, {"x": X[:, 0]}),
}
MODEL = ["--model", "feature", "--set", "features=linear", "--quiet"]


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_links_stay_and_permissions_are_kept(tmp_path, write):
    new, old, link = tmp_path / "new.csv", tmp_path / "old.csv", tmp_path / "link.csv"
    old.write_text("before")
    old.chmod(0o664)
    link.symlink_to("old.csv")
    umask = os.umask(0o027)
    try:
        write(new)
    finally:
        os.umask(umask)
    write(link)
    assert link.is_symlink() and old.read_bytes() == link.read_bytes() != b"before"
    assert (mode(new), mode(old)) == (0o640, 0o664)
    assert sorted(os.listdir(tmp_path)) == ["link.csv", "new.csv", "old.csv"]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_pipes_and_folders_stay(tmp_path, write):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    for name, what in (("pipe.csv", "a pipe"), ("folder.csv", "a folder")):
        with pytest.raises(ValueError, match=what):
            write(tmp_path / name)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe.csv").st_mode) and len(os.listdir(tmp_path)) == 2


def test_threads_that_write_one_path_leave_a_whole_file_at_every_moment(tmp_path):
    path, errors = tmp_path / "arrays", []
    save_tree(path, [X], {})

    def work(call):
        try:
            for _ in range(30):
                call()
        except Exception as error:
            errors.append(error)

    calls = [lambda: save_tree(path, [X], {})] * 3 + [lambda: load_tree(path)]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and os.listdir(tmp_path) == ["arrays"]


def test_an_error_leaves_the_old_file_and_names_it(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left") as caught, replacing(path):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(path)
    with pytest.raises(ZeroDivisionError), replacing(path) as partial:
        partial.write_text(str(1 / 0))
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_the_check_refuses_inputs_under_any_name_and_changes_nothing(tmp_path):
    data, link, hard = tmp_path / "data.csv", tmp_path / "link", tmp_path / "hard"
    data.write_text("x")
    link.symlink_to(data)
    hard.hardlink_to(data)
    for out in (data, link, hard):
        for source in (data, tmp_path):  # the file, and the folder that holds it
            with pytest.raises(ValueError, match="read as an input"):
                check_can_write(out, [None, source])
    check_can_write(tmp_path / "new", ["another", data])
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "hard", "link"]


def refused(capsys, arguments):
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    write_table(path, {"x": X[:, 0], "y": X[:, 1]})
    return path


def test_the_command_line_refuses_before_anything_is_learned(table, tmp_path, capsys, monkeypatch):
    def learn(*_, **__):
        raise AssertionError("something was learned")

    monkeypatch.setattr(FeatureGPRegressor, "fit", learn)
    content, fit = table.read_bytes(), ["fit", table, "--target", "y", *MODEL]
    assert "read as an input" in refused(capsys, [*fit, "--out", table])
    assert "read as an input" in refused(capsys, [*fit, "--out", tmp_path / "m", "--checkpoint", table])
    assert "two different files" in refused(
        capsys, [*fit, "--out", tmp_path / "m", "--checkpoint", tmp_path / "m"]
    )
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(capsys, [*fit, "--out", tmp_path / "pipe"])
    (tmp_path / "m").write_text("a model")
    for data, out in ((table, table), (table, tmp_path / "m")):
        assert "read as an input" in refused(capsys, ["predict", tmp_path / "m", data, "--out", out])
    monkeypatch.setattr(
        os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    assert f"{tmp_path / 'new'}: Permission denied" in refused(capsys, [*fit, "--out", tmp_path / "new"])
    monkeypatch.undo()
    assert table.read_bytes() == content and sorted(os.listdir(tmp_path)) == ["m", "pipe", "table.csv"]


@pytest.mark.parametrize("kind", [FeatureGPRegressor, GPRegressor])
def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(kind, tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        kind().fit(X[:, :1], X[:, 1], checkpoint=tmp_path / "none" / "run")
