"""Options of a place in an object store that name another place, or hold a password, are refused."""

from __future__ import annotations

import re
import sys

import pytest

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.installation import pip_install
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_files.object_store import ObjectStore, StoreUnavailable, client_options, require_usable_options
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_sandbox.servers.configuration import HOST, free_port


@pytest.mark.parametrize(
    "path", ["s3://key:my-own-key@bucket/x", "s3://key:my-own/key@bucket", "s3://bucket/x?key=my-own-key", "s3://b/x#2"]
)
def test_a_uri_is_a_bucket_and_a_prefix(path: str) -> None:
    with pytest.raises(ConfigError, match=r"path is a URI with a password, a \? or a #: only bucket and") as caught:
        ParquetSink({"path": path}, contract_context())
    assert "my-own" not in str(caught.value)


def test_a_container_of_azure_is_no_password() -> None:
    require_usable_options("abfss://container@account.dfs.core.windows.net/lake", {})


@pytest.mark.parametrize("key", ["aws_bucket", "bucket", "azure_container_name", "GOOGLE_BUCKET_NAME"])
def test_the_path_names_the_bucket(key: str) -> None:
    with pytest.raises(ConfigError, match=f"store_options.{key} is not supported: path names the bucket"):
        ParquetSink({"path": "s3://bucket/lake", "store_options": {key: "other"}}, contract_context())


def test_an_endpoint_has_no_password() -> None:
    options = {"aws_endpoint": "https://me:my-own-key@objects.example"}
    with pytest.raises(ConfigError, match=r"store_options\.aws_endpoint is not for a file that others read") as caught:
        ParquetSink({"path": "s3://bucket/lake", "store_options": options}, contract_context())
    assert "my-own-key" not in str(caught.value)


def test_schemes_are_in_small_letters() -> None:
    """Not a directory of that name in the working directory."""
    with pytest.raises(ConfigError, match='path: "S3://x/y" is not a directory, nor a URI with s3, s3a, gs, abfss'):
        ParquetSink({"path": "S3://x/y"}, contract_context())


@pytest.mark.parametrize("key", ["aws_endpoint", "AWS_ENDPOINT_URL", "google_base_url", "azure_storage_endpoint"])
def test_plain_http_is_spoken_if_the_endpoint_says_so(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_options({key: "https://objects.example"}) == {}
    assert client_options({key: "http://objects.example"}) == {"allow_http": "true"}
    monkeypatch.setenv(key.upper(), "http://objects.example")
    assert client_options({}) == {"allow_http": "true"}
    assert client_options({"aws_metadata_endpoint": "http://objects.example"}) == {"allow_http": "true"}
    monkeypatch.setenv(key.upper(), "https://objects.example")
    monkeypatch.setenv("ENDPOINT", "http://objects.example")
    assert client_options({"aws_metadata_endpoint": "http://objects.example"}) == {}, "a variable of no vendor"


@pytest.mark.parametrize("key", ["aws_secret_access_key", "AWS_ACCESS_KEY_ID", "azure_storage_sas_key", "aws_token"])
def test_credentials_are_no_options(key: str) -> None:
    with pytest.raises(ConfigError, match=f"store_options.{key} is not for a file that others read") as caught:
        ParquetSink({"path": "s3://bucket/lake", "store_options": {key: "my-own-key"}}, contract_context())
    assert "my-own-key" not in str(caught.value)


def test_options_that_no_store_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"aws_bukket": "x"}
    with pytest.raises(ConfigError, match=r"\[sink.options\] store_options: s3://bucket/lake: .*aws_bukket"):
        ParquetSink({"path": "s3://bucket/lake", "store_options": options}, contract_context())
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        PluginError, match=re.escape(f"needs obstore: {pip_install('object-store', 'kzconsumer-files')}")
    ):
        ParquetSink({"path": "s3://bucket/lake"}, contract_context())


def test_other_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match='path: "ftp://x/y" is not a directory, nor a URI with s3, s3a, gs, abfss'):
        ParquetSink({"path": "ftp://x/y"}, contract_context())


@pytest.mark.parametrize("path", ["s3://", "gs:///", "s3:///orders"])
def test_a_bucket_is_named(path: str) -> None:
    with pytest.raises(ConfigError, match=f'path: "{path}" names no bucket, as "{path[:2]}://bucket/orders" does'):
        ParquetSink({"path": path}, contract_context())


@pytest.mark.parametrize(
    ("path", "role", "missing"),
    [
        ("s3://bucket/lake", "AWS_METADATA_ENDPOINT=http://{}", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/lake", "GCE_METADATA_HOST={}", "GOOGLE_APPLICATION_CREDENTIALS"),
        (
            "abfss://bucket@account.dfs.core.windows.net/lake",
            "AZURE_MSI_ENDPOINT=http://{}/metadata/identity/oauth2/token",
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ],
)
def test_missing_credentials_are_named(path: str, role: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in missing.split(" and "):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", f"{HOST}:{free_port()}")  # where Google's is looked for otherwise
    variable, _, value = role.partition("=")
    monkeypatch.setenv(variable, value.format(f"{HOST}:{free_port()}"))
    with pytest.raises(StoreUnavailable, match=f"set {missing} in the env"):
        ObjectStore(path, {}).read("x")
