# docker build -t electra .
# docker run -p 8000:8000 -e ELECTRA_TOKEN=SECRET -v ./run:/models/run:ro electra
FROM python:3.13-slim
COPY . /source
RUN pip install --no-cache-dir "/source[serve]" && rm -r /source && useradd --create-home electra
USER electra
EXPOSE 8000
ENTRYPOINT ["electra", "serve", "--host", "0.0.0.0"]
CMD ["/models/run"]
