"""The XML API of Google Cloud Storage, which fake-gcs-server does not have, by its JSON API: what `obstore` calls.

Conditions are decided by that server (`ifGenerationMatch`), here they are only passed on. See
https://cloud.google.com/storage/docs/xml-api/overview and https://cloud.google.com/storage/docs/json_api.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

import msgspec
from aiohttp import ClientSession
from yarl import URL

from kzconsumer_sandbox.servers.configuration import HOST

_XML: Final = {"Content-Type": "application/xml"}


class Request(NamedTuple):
    """`path` has its query, both as they were sent; names of `headers` are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    is_changed: bool = False

    def without(self, *names: str) -> Request:
        """The same without these headers."""
        left = {name: value for name, value in self.headers.items() if name not in names}
        return self._replace(headers=left, is_changed=self.is_changed or left != self.headers)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class GoogleServer:
    def __init__(self, session: ClientSession, port: int, token: str) -> None:
        self._session = session
        self._base = f"http://{HOST}:{port}"
        self._token = token
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def answer(self, request: Request) -> Answer:
        if "/computeMetadata/" in request.path:  # what a machine of Google's asks for the token of its role
            token = {"access_token": self._token, "expires_in": 3600, "token_type": "Bearer"}
            return Answer(200, {"Content-Type": "application/json"}, msgspec.json.encode(token))
        if request.headers.get("authorization") != f"Bearer {self._token}":
            return _fault(401, "AuthenticationRequired")
        path, _, text = request.path.partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        bucket, _, name = path[1:].partition("/")  # the name stays quoted: a slash in it is %2F
        match request.method:
            case "GET" if not name:
                return await self._listed(bucket, query)
            case "GET" | "HEAD":
                place = f"/download/storage/v1/b/{bucket}/o/{name}?alt=media"
                wanted = {key: value for key, value in request.headers.items() if key == "range"}
                return await self._call(request.method, place, headers=wanted)
            case "PUT" if source := request.headers.get("x-goog-copy-source"):
                origin, _, copied = source.removeprefix("/").partition("/")
                place = f"/storage/v1/b/{origin}/o/{copied}/rewriteTo/b/{bucket}/o/{name}"
                return Answer((await self._call("POST", place)).status, {})
            case "PUT" if upload := query.get("uploadId"):
                self._uploads[upload][int(query["partNumber"])] = request.body
                return Answer(200, {"ETag": f'"{query["partNumber"]}"'})
            case "PUT":
                return await self._put(bucket, name, request.body, request.headers.get("x-goog-if-generation-match"))
            case "POST" if "uploads" in query:
                self._uploads[begun := uuid.uuid4().hex] = {}
                return _xml(f"<InitiateMultipartUploadResult>{_tag('UploadId', begun)}</InitiateMultipartUploadResult>")
            case "POST":
                parts = self._uploads.pop(query["uploadId"])
                done = await self._put(bucket, name, b"".join(parts[number] for number in sorted(parts)), None)
                etag = _tag("ETag", done.headers.get("ETag", ""))
                return _xml(f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>")
            case "DELETE" if upload := query.get("uploadId"):
                self._uploads.pop(upload, None)
                return Answer(204, {})
            case "DELETE":
                return Answer((await self._call("DELETE", f"/storage/v1/b/{bucket}/o/{name}")).status, {})
        return _fault(405, "MethodNotAllowed")

    async def _put(self, bucket: str, name: str, body: bytes, generation: str | None) -> Answer:
        # Of a plain upload (`media`) this server ignores the condition.
        condition = "" if generation is None else f"&ifGenerationMatch={generation}"
        place = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}"
        described = msgspec.json.encode({"name": unquote(name)})
        parts = b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n--%b\r\n\r\n%b\r\n--%b--\r\n"
        edge = uuid.uuid4().hex.encode()
        headers = {"Content-Type": f"multipart/related; boundary={edge.decode()}"}
        answer = await self._call("POST", place, parts % (edge, described, edge, body, edge), headers)
        if answer.status == 404:
            return _fault(404, "NoSuchBucket")
        if answer.status == 412:
            return _fault(412, "PreconditionFailed")
        made = msgspec.json.decode(answer.body)
        return Answer(200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]})

    async def _listed(self, bucket: str, query: dict[str, str]) -> Answer:
        said = {
            "prefix": query.get("prefix"),
            "delimiter": query.get("delimiter"),
            "startOffset": query.get("start-after"),
            "pageToken": query.get("continuation-token"),
            "maxResults": query.get("max-keys"),
        }
        text = "&".join(f"{key}={quote(value, safe='')}" for key, value in said.items() if value)
        async with self._session.get(URL(f"{self._base}/storage/v1/b/{bucket}/o?{text}", encoded=True)) as response:
            if response.status == 404:
                return _fault(404, "NoSuchBucket")
            found: dict[str, Any] = await response.json()
        items = [each for each in found.get("items", []) if each["name"] != query.get("start-after")]
        contents = "".join(
            f"<Contents>{_tag('Key', each['name'])}{_tag('Size', each['size'])}"
            f"{_tag('LastModified', each['updated'])}{_tag('ETag', each['etag'])}</Contents>"
            for each in items
        )
        prefixes = "".join(
            f"<CommonPrefixes>{_tag('Prefix', each)}</CommonPrefixes>" for each in found.get("prefixes", [])
        )
        more = found.get("nextPageToken")
        end = _tag("NextContinuationToken", more) if more else ""
        truncated = _tag("IsTruncated", "true" if more else "false")
        return _xml(f"<ListBucketResult>{truncated}{contents}{prefixes}{end}</ListBucketResult>")

    async def _call(self, method: str, place: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        url = URL(self._base + place, encoded=True)
        async with self._session.request(method, url, data=body, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())


def _tag(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


def _xml(text: str) -> Answer:
    return Answer(200, _XML, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())


def _fault(status: int, code: str) -> Answer:
    return Answer(status, _XML, f"<Error>{_tag('Code', code)}{_tag('Message', code)}</Error>".encode())
