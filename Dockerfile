# docker build -t electra .
# docker run -p 127.0.0.1:8000:8000 -e ELECTRA_TOKEN -v "$PWD/run:/models/run:ro" electra
FROM python:3.13-slim
# Without CUDA, gigabytes smaller. For a GPU, from pip's own index: --build-arg TORCH_INDEX=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE /source/
COPY electra /source/electra
RUN pip install --no-cache-dir "/source[serve]" && rm -r /source && useradd --create-home electra
USER electra
# -e PORT=9000 serves another port, which the health check follows.
ENV PORT=8000
EXPOSE $PORT
HEALTHCHECK --start-period=60s CMD ["sh", "-c", \
    "python -c \"from urllib.request import urlopen; urlopen('http://127.0.0.1:$PORT/ready')\""]
ENTRYPOINT ["sh", "-c", "exec electra serve --host 0.0.0.0 --port $PORT \"$@\"", "serve"]
CMD ["/models/run"]
