FROM python:3.11-slim-bookworm AS build
# The CPU build of torch; for CUDA pass https://pypi.org/simple (the same version, 3 GB larger).
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /srv/learnloop
# Dependencies first: this layer stays as long as these two files do.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    print(*(d for d in p['dependencies'] if not d.startswith('learnloop')), *(d for extra in ('embedded', 'export', 'openenv', 'prices', 'tables', 'weave') for d in p['optional-dependencies'][extra]), sep='\n')" > /tmp/requirements.txt \
    && pip install --extra-index-url "$TORCH_INDEX" --constraint constraints.txt --requirement /tmp/requirements.txt
COPY README.md LICENSE ./
COPY alembic ./alembic
COPY app ./app
COPY configs ./configs
COPY environment ./environment
COPY judges ./judges
COPY learnloop ./learnloop
COPY plugins ./plugins
COPY src ./src
COPY training ./training
RUN pip install --no-deps --editable ./learnloop --editable . $(printf -- "--editable %s " ./plugins/*/)

FROM python:3.11-slim-bookworm
# For CUDA pass "gcc libc6-dev": Triton compiles what launches its kernels when it first runs.
ARG EXTRA_PACKAGES=
# An init that reaps: the service owns an engine process, and a zombie looks alive. And a name for users that have none,
# as on OpenShift, which the embedded Postgres asks for.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.* libnss-wrapper $EXTRA_PACKAGES \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home learnloop \
    && install --directory --owner=learnloop --group=learnloop --mode=700 /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv/learnloop /srv/learnloop
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 LEARNLOOP_DATA_DIR=/data LEARNLOOP_HOST=0.0.0.0 LEARNLOOP_PORT=8000
WORKDIR /data
VOLUME /data
USER 10001
EXPOSE 8000
# For registries: `--build-arg VERSION=0.1.0`. The installed packages know theirs: `docker run --rm learnloop --version`.
ARG VERSION=
LABEL org.opencontainers.image.title=learnloop org.opencontainers.image.version=$VERSION
ENTRYPOINT ["tini", "--", "learnloop"]
CMD ["serve"]
