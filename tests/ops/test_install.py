"""What the installer reads from outside: the release page and pip's report."""

from ops.install import asset_names, resolved_version


def test_release_page_gives_the_names_of_its_files() -> None:
    facts = {"tag_name": "v1.6.5", "assets": [{"name": "a.whl", "size": 1}, {"name": "b.whl"}, {"size": 2}, "odd"]}
    assert asset_names(facts) == ("a.whl", "b.whl")


def test_release_page_of_another_shape_gives_no_names() -> None:
    """An error document or a page of a proxy must not stop the installation."""
    assert asset_names({"message": "API rate limit exceeded"}) == ()
    assert asset_names(["assets"]) == ()
    assert asset_names({"assets": None}) == ()


def test_pip_report_says_which_torch_would_come() -> None:
    report = {
        "install": [
            {"metadata": {"name": "filelock", "version": "4.0"}},
            {"metadata": {"name": "torch", "version": "2.13.0+cpu"}},
        ]
    }
    assert resolved_version(report, "torch") == "2.13.0+cpu"
    assert resolved_version({"install": []}, "torch") == ""
