"""The installation passes on to uv what pip is configured with."""

from scripts.install import read_configuration, uv_settings

_LISTED = """\
:env:.extra-index-url='https://download.example/cpu'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.extra-index-url='file:///opt/one file:///opt/two'
global.find-links='/opt/wheels /opt/more'
global.timeout='180'
install.find-links='/opt/wheels\\n/opt/latest'
freeze.exclude='torch'
"""


def test_the_nearest_setting_decides() -> None:
    assert read_configuration(_LISTED) == {
        "extra-index-url": "https://download.example/cpu",
        "find-links": "/opt/wheels\n/opt/latest",
        "cert": "/etc/ssl/certs/ca-certificates.crt",
        "timeout": "180",
    }


def test_uv_gets_them_in_its_own_form() -> None:
    assert uv_settings(read_configuration(_LISTED), {}) == {
        "UV_INDEX": "https://download.example/cpu",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/opt/wheels,/opt/latest",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    }


def test_what_is_set_for_uv_stays() -> None:
    assert uv_settings({"index-url": "https://one.example/simple"}, {"UV_DEFAULT_INDEX": "elsewhere"}) == {}
    settings = uv_settings({"extra-index-url": "https://two.example"}, {"UV_INDEX_STRATEGY": "first-index"})
    assert settings == {"UV_INDEX": "https://two.example"}
