# A policy server on the CPU, without torch. The folder runs/ holds a run of `menv train`, and a file with a token for the clients:
#
#   docker build -t menv .
#   docker run --init -p 9900:9900 -v "$PWD/runs:/runs" menv serve pole --frozen --address 0.0.0.0 --token-file token
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 menv

# "train,serve" for an image that also trains.
ARG EXTRAS=serve
# For pip, such as an index with builds of torch for the CPU alone: --build-arg PIP_OPTIONS="--extra-index-url ..."
ARG PIP_OPTIONS=""

COPY pyproject.toml README.md LICENSE constraints.txt /src/
COPY menv /src/menv
RUN pip install --no-cache-dir -c /src/constraints.txt $PIP_OPTIONS "/src[$EXTRAS]"

USER 1000
WORKDIR /runs
EXPOSE 9900
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9900/health', timeout=5)"]
# Ctrl-C and `docker stop` save a run that learns.
STOPSIGNAL SIGTERM
ENTRYPOINT ["menv"]
CMD ["--help"]
