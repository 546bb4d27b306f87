# vitssl and all it needs, CUDA runtime included, to run sweeps on one machine:
#
#   docker build -t vitssl .
#   mkdir -p runs shards
#   docker run --rm --gpus all -v "$PWD/runs:/workspace/runs" -v "$PWD/shards:/workspace/shards" vitssl sweeps/quickstart.yaml
#
# - Without a GPU: leave --gpus all out.
# - The folders must be writable by user 1000; to run as yourself instead, add --user "$(id -u):$(id -g)".
# - A sweep file of your own: -v "$PWD/my.yaml:/workspace/sweeps/my.yaml".
# - More than one GPU: --shm-size 8g, because NCCL's processes meet in /dev/shm, of which Docker grants 64 MB.
# - docker stop -t 120 leaves the running job the time to save; the same `docker run` goes on from there.
# - Another command: --entrypoint vitssl, then for example shards info shards/digits.
#
# On a SLURM cluster jobs train in the image that apptainer.def makes; it holds the same environment.
FROM python:3.11-slim-bookworm AS requirements
WORKDIR /workspace
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt

FROM python:3.11-slim-bookworm

# g++ (250 MB of 7 GB): torch.compile builds code at run time, Inductor in C++ and Triton's launchers in C.
# tini: hands `docker stop` on and reaps orphans.
# Versions come with the base image's Debian release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /workspace

# Only new dependencies or versions make this layer anew: an edit of the source, or of anything else in pyproject.toml,
# rebuilds the layers below it, in seconds.
COPY --from=requirements /workspace/requirements.txt ./
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --root-user-action ignore -c constraints.txt -r requirements.txt \
    && rm requirements.txt

# Any user may be given with --user: HOME and the mount points are open to all.
RUN useradd --uid 1000 --create-home vitssl \
    && mkdir data runs shards weights \
    && chown vitssl: data runs shards weights \
    && chmod 1777 data runs shards weights /home/vitssl

# Editable: the source that is installed is the source that the launcher takes its snapshots from.
COPY . .
RUN pip install --root-user-action ignore --no-cache-dir --no-deps --no-build-isolation -e .

# The driver is the host's: `compute` for CUDA, `utility` for NVML, which measures energy.
# USER answers for users without an entry in /etc/passwd.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    HOME=/home/vitssl \
    USER=vitssl

# The commit, for reports: docker build --build-arg REVISION="$(git rev-parse HEAD)"
ARG REVISION=
ENV VITSSL_REVISION=${REVISION}
LABEL org.opencontainers.image.title="vitssl" \
      org.opencontainers.image.description="Vision Transformers on scarce data: SSAT, SSL + fine-tuning and their kin, with their cost" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"

USER 1000:1000
ENTRYPOINT ["tini", "--", "python", "/workspace/jobs/submit.py"]
CMD ["--help"]
