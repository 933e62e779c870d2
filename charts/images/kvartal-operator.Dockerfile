# The operator.
# From the root of the source tree: docker build -f charts/images/kvartal-operator.Dockerfile -t kvartal/kvartal-operator .
FROM debian:12-slim AS build
WORKDIR /src
COPY scripts/install_deps scripts/
RUN apt-get update && apt-get install -y --no-install-recommends python3 && scripts/install_deps
COPY . .
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release \
 && cmake --build /build --target kvartal-operator \
 && mkdir -p /out && cp /build/bin/kvartal-operator /out/ && strip --strip-unneeded /out/kvartal-operator

FROM debian:12-slim
# What the program links; a test holds this list against it.
RUN apt-get update && apt-get install -y --no-install-recommends \
      ca-certificates libabsl20220623 libboost-filesystem1.74.0 libboost-regex1.74.0 libcpprest2.10 libfmt9 libgcc-s1 \
      libgrpc++1.51 libgrpc29 libprotobuf32 libspdlog1.10 libssl3 libstdc++6 libxxhash0 libyaml-cpp0.7 zlib1g \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/kvartal-operator /usr/local/bin/
COPY LICENSE /usr/share/doc/kvartal/copyright
USER 65532:65532
ENTRYPOINT ["kvartal-operator"]
