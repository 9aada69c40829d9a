from fedssl.extras import installed


def test_a_leftover_folder_is_not_a_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    left, whole = tmp_path / "left_behind", tmp_path / "whole_package"
    (left / "__pycache__").mkdir(parents=True)
    whole.mkdir()
    (whole / "__init__.py").touch()
    assert [installed(name) for name in ("left_behind", "whole_package", "never_heard_of")] == [
        False,
        True,
        False,
    ]
