"""Connections to the engine that the network forgets, and that neither side learns of."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from learnloop_service.environment.base import Environment
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.training.backends.base import BackendUnavailable, Endpoint, ModelSpec
from learnloop_service.training.backends.embedded import EmbeddedBackend, connect
from learnloop_service.training.lost_connections import kept_alive_mounts
from learnloop_service.training.rollout.chat import EndpointChat, open_chat
from learnloop_service.training.rollout.http_transport import AiohttpTransport
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import FailureKind
from tests.fakes.engine_process import EngineProcess
from tests.fakes.forgetful_network import ForgetfulNetwork, forgetful_network

ASKED = {"model": "random", "messages": [{"role": "user", "content": "Hello"}], "seed": 1}


@pytest.fixture(autouse=True)
def checks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.training.lost_connections._FIRST_CHECK_S", 0.2)
    monkeypatch.setattr("learnloop_service.training.lost_connections._CHECK_S", 0.2)


@pytest.fixture
async def network(engine: EngineProcess) -> AsyncIterator[ForgetfulNetwork]:
    port = httpx.URL(engine.base_url).port
    assert port
    async with forgetful_network(port) as network:
        yield network


@pytest.fixture
async def chat(network: ForgetfulNetwork) -> AsyncIterator[EndpointChat]:
    async with open_chat(Endpoint(f"{network.url}/v1", "none", "random", remembers=True)) as chat:
        yield chat


@pytest.fixture
async def backend(network: ForgetfulNetwork) -> AsyncIterator[EmbeddedBackend]:
    backend = await connect(f"{network.url}/v1", "none")
    yield backend
    await backend.close()


async def test_a_request_on_a_forgotten_connection_ends_and_the_next_is_answered(
    network: ForgetfulNetwork, chat: EndpointChat
) -> None:
    first = await chat.complete({**ASKED, "max_tokens": 1})
    network.forget()
    async with asyncio.timeout(60):
        with pytest.raises(openai.APIConnectionError):
            await chat.complete({**ASKED, "max_tokens": 1})
        again = await chat.complete({**ASKED, "max_tokens": 1})
    assert again.choices[0].message == first.choices[0].message


async def test_a_reply_that_takes_long_is_waited_for(network: ForgetfulNetwork, chat: EndpointChat) -> None:
    """It takes many times what the engine is first asked after."""
    body = {**ASKED, "max_tokens": 3_000}
    replies = await asyncio.gather(*(chat.complete({**body, "seed": seed}) for seed in range(4)))
    assert all(reply.usage and reply.usage.completion_tokens > 1 for reply in replies)
    assert network.connections > 1, "nothing took long enough to be asked for"


async def test_a_reply_that_is_lost_on_its_way_is_not_waited_for(network: ForgetfulNetwork, chat: EndpointChat) -> None:
    asking = asyncio.create_task(chat.complete({**ASKED, "max_tokens": 200}))
    while not network.connections:
        await asyncio.sleep(0.001)
    network.forget()
    async with asyncio.timeout(60):
        with pytest.raises(openai.APIConnectionError):
            await asking


async def test_a_training_request_on_a_forgotten_connection_blames_the_backend(
    network: ForgetfulNetwork, backend: EmbeddedBackend
) -> None:
    model = ModelSpec("lost", "connections", "random")
    await backend.register(model)
    network.forget()
    async with asyncio.timeout(60):
        with pytest.raises(BackendUnavailable):
            await backend.register(model)
        assert await (await backend.register(model)).step() == 0


@pytest.fixture(scope="module")
def mail() -> Environment:
    return SyntheticEmailSearch()


async def test_a_rollout_continues_after_its_connection_is_forgotten(
    network: ForgetfulNetwork, chat: EndpointChat, mail: Environment
) -> None:
    await chat.complete({**ASKED, "max_tokens": 1})
    network.forget()
    played = await rollout(
        mail, mail.scenarios("train", 1, seed=1)[0], chat, RolloutLimits(2, 8, 60.0), id="one", seed=1
    )
    assert played.failure is None


async def test_time_that_the_backend_took_is_not_the_agents_failure(
    network: ForgetfulNetwork, chat: EndpointChat, mail: Environment
) -> None:
    network.forgets_new = True
    played = await rollout(
        mail, mail.scenarios("train", 1, seed=1)[0], chat, RolloutLimits(2, 8, 25.0), id="one", seed=1
    )
    assert played.failure is not None
    assert played.failure.kind is FailureKind.BACKEND_AWAY


def _looks_for_its_peer(end: socket.socket) -> bool:
    return (
        end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        and end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 5
        and end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000
    )


async def test_the_operating_system_looks_for_machines_that_are_gone(network: ForgetfulNetwork) -> None:
    sampling = AiohttpTransport()
    async with httpx.AsyncClient(transport=sampling) as http:
        await http.get(f"{network.url}/health")
        assert sampling._session is not None
        assert sampling._session.connector is not None
        [[(protocol, _)]] = sampling._session.connector._conns.values()
        assert protocol.transport
        assert _looks_for_its_peer(protocol.transport.get_extra_info("socket"))
    training = kept_alive_mounts(network.url, httpx.Limits(), None)["http://"]
    async with httpx.AsyncClient(transport=training) as http:
        reply = await http.get(f"{network.url}/health")
        assert _looks_for_its_peer(reply.extensions["network_stream"].get_extra_info("socket"))
