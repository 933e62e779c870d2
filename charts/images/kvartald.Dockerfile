# The daemon with its admin tool, and the client library with a program that uses it (for `helm test`).
# From the root of the source tree: docker build -f charts/images/kvartald.Dockerfile -t kvartal/kvartald .
FROM debian:12-slim AS build
WORKDIR /src
COPY scripts/install_deps scripts/
RUN apt-get update && apt-get install -y --no-install-recommends python3 && scripts/install_deps
COPY . .
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release \
 && cmake --build /build --target kvartald kvartalctl kvartal client_example \
 && mkdir -p /out/bin /out/lib \
 && cp /build/bin/kvartald /build/bin/kvartalctl /out/bin/ \
 && cp /build/tests/client_example /out/bin/kvartal-example \
 && cp -P /build/lib/libkvartal.so* /out/lib/ \
 && strip --strip-unneeded /out/bin/* /out/lib/libkvartal.so.*.*.*

FROM debian:12-slim
# What the programs link; a test holds this list against them.
RUN apt-get update && apt-get install -y --no-install-recommends \
      libabsl20220623 libfmt9 libgcc-s1 libgrpc++1.51 libgrpc29 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0 \
      libprotobuf-lite32 libprotobuf32 librocksdb7.8 libspdlog1.10 libssl3 libstdc++6 liburing2 libxxhash0 \
      libyaml-cpp0.7 zlib1g \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/bin/ /usr/local/bin/
COPY --from=build /out/lib/ /usr/local/lib/
COPY LICENSE /usr/share/doc/kvartal/copyright
RUN ldconfig
USER 65532:65532
ENTRYPOINT ["kvartald"]
