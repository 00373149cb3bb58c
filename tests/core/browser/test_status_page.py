"""The status page in a real browser: on a running member, and on one that requires its token."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest
from playwright.async_api import Browser, Error, expect

from kzconsumer.status.status_server import serving
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.plain.test_status_server import observer
from tests.support.browser import window
from tests.support.members import daemon, reader, settings
from tests.support.producing import Sent, produce
from tests.support.programs import CHROMIUM
from tests.support.zookeeper_sessions import session, until

pytestmark = [pytest.mark.needs(CHROMIUM), pytest.mark.asyncio(loop_scope="package")]

EVIL = "<img src=x onerror=document.title='taken'>"


async def test_the_page_of_a_running_member(chromium: Browser, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """It loads, is readable at any width, follows the group's changes, and shows foreign content as text only."""
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"do-not-show-%d" % n) for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    extra = '[status]\nlisten = "127.0.0.1:0"\n'
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra) as member:
        await until(lambda: member.events("status is served"), 30)
        at = member.events("status is served")[0]["at"]
        async with window(chromium) as desk:
            page = desk.page
            await page.goto(at)
            partitions = page.locator("#partitions-table tbody tr")
            await expect(page.locator("#readiness")).to_have_text("healthy")
            await expect(page.locator("#group")).to_have_text(unique)
            await expect(partitions).to_have_count(2)
            for number in range(2):
                await expect(partitions.nth(number).locator("th")).to_have_text(f"{unique}-{number}")
                for place in range(3, 8):  # four offsets and the end of the log
                    await expect(partitions.nth(number).locator("td").nth(place)).to_have_text("10")
            await expect(page.locator("#rebalances li")).to_have_count(1)
            await expect(page.locator("#batches-table")).to_contain_text("written")
            await expect(page.locator("#lag-text")).to_contain_text("Z 0;")
            await page.get_by_text("Every setting, without secrets").click()
            await expect(page.locator("#config-table")).to_contain_text("offsets.commit_interval")
            assert await desk.barriers() == []

            async with window(chromium, 360, 740, color_scheme="dark") as phone:
                await phone.page.goto(f"{at}/status")
                await expect(phone.page.locator("#partitions-table tbody tr")).to_have_count(2)
                await expect(phone.page.locator("#lag-chart .dot")).to_have_count(1)
                assert await phone.overflow() == 0
                assert await phone.barriers() == []
                assert phone.faults == []

            # A choice made with the keyboard.
            await page.locator("#named").focus()
            await page.keyboard.type(f"{unique}-1")
            await expect(partitions).to_have_count(1)
            await expect(page.locator("#partitions-count")).to_have_text("1 of 2 shown")
            await page.locator("#named").fill("")

            async with reader(settings(cluster.connect, unique), {unique: 1}) as other:
                await expect(page.locator("#members-table")).to_contain_text(other.consumer.consumer)
                await expect(partitions).to_have_count(1)
                await expect(page.locator("#rebalances li").first).to_contain_text("1 released")
                await expect(page.locator("#rebalances li").first).to_contain_text("members")

            registration = {"version": 1, "subscription": {EVIL: 1}, "pattern": "static", "timestamp": "1",
                            "status": "javascript:alert(1)"}  # fmt: skip
            async with session(cluster.connect) as zookeeper:
                await zookeeper.create(
                    f"/consumers/{unique}/ids/{EVIL}", json.dumps(registration).encode(), ephemeral=True
                )
                hostile = page.locator("#members-table tbody tr", has_text=EVIL)
                await expect(hostile.locator("th")).to_have_text(EVIL)
                await expect(hostile).to_contain_text(f"{EVIL}, 1 thread")
                assert await page.locator("#shown img").count() == 0
                assert await hostile.locator("a").count() == 0
                assert "taken" not in await page.title()
            with pytest.raises(Error, match="TrustedHTML"):
                await page.evaluate("document.body.innerHTML = '<b>x'")

            assert "do-not-show" not in await page.content()
            assert {url.removeprefix(at) for url in desk.asked if not url.startswith("data:")} == {
                "/", "/status", "/api/v1/events?group",
            }  # fmt: skip
            assert [each for each in desk.faults if "TrustedHTML" not in each] == []
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
            await expect(page.locator("#readiness")).to_have_text("not reachable")
            await expect(page.locator("#reason")).to_contain_text("since ")


async def test_the_page_asks_for_the_token(chromium: Browser, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    async with serving(observer(at, token_file=str(token))), window(chromium) as desk:
        page = desk.page
        await page.goto(f"http://{at}/status")
        await expect(page.get_by_label("token")).to_be_focused()
        assert await desk.barriers() == []
        assert "orders" not in await page.content(), "nothing is shown without it"
        await page.keyboard.type("guess")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("Wrong token.")
        await page.get_by_label("token").fill("open sesame")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("#group")).to_have_text("orders")
        await expect(page.locator("#readiness")).to_have_text("not examined")
        await expect(page.locator("#reason")).to_have_text("waiting for ZooKeeper and a broker")
        await page.reload()
        await expect(page.locator("#group")).to_have_text("orders")
        assert "sesame" not in page.url
