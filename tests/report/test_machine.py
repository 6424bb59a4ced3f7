"""Names of other machines, which a recording holds, in what a report writes."""

from pathlib import Path

import pytest

from perfkit.report.machine import Machine, named

OTHER = Machine({"/srv/data/run": "run"})


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/home/anna/proj/train.py(12): step", "~/proj/train.py(12): step"),
        ("File /Users/anna.b/proj/train.py", "File ~/proj/train.py"),
        (r"C:\Users\anna\proj\train.py", r"~\proj\train.py"),
        (r'"C:\\Users\\anna\\proj\\train.py"', r'"~\\proj\\train.py"'),
        ("file:///home/anna/x.html", "file://~/x.html"),
        ("It lay in /home/anna.", "It lay in ~."),
        ("<td>/home/anna&lt;</td>", "<td>~&lt;</td>"),
        ("/Users/Shared/x", "/Users/Shared/x"),
        ("all below /home/ is theirs", "all below /home/ is theirs"),
        ("a/home/x", "a/home/x"),
    ],
)
def test_a_home_folder_of_another_machine_becomes_a_tilde(text: str, written: str) -> None:
    assert written == OTHER.text(text)


def test_the_users_of_homes_are_numbered_in_other_paths() -> None:
    machine = Machine({"/srv/data/run": "run"})
    machine.text("/home/anna/a.py and /home/berta/b.py")
    assert "/scratch/user0/x /data/user1/y" == machine.text("/scratch/anna/x /data/berta/y")


def test_a_user_is_not_looked_for_outside_of_paths() -> None:
    machine = Machine({"/srv/data/run": "run"})
    assert "anna ~/anna.py" == machine.text("anna /home/anna/anna.py")


def test_the_hosts_of_a_recording_are_numbered(tmp_path: Path) -> None:
    machine = named(tmp_path, {}, ["gpu-node-17.cluster", "gpu-node-18.cluster"])
    assert "host1 host0" == machine.text("gpu-node-18.cluster gpu-node-17.cluster")


def test_a_host_whose_name_may_be_a_word_stays(tmp_path: Path) -> None:
    assert "node" == named(tmp_path, {}, ["node"]).text("node")


def test_with_the_paths_kept_nothing_is_changed() -> None:
    assert "/home/anna/a.py" == Machine({}).text("/home/anna/a.py")
