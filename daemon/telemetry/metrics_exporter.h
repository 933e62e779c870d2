// The Prometheus endpoint. Shows the last snapshot it was given; a scrape never touches the engine.
// Thread-safe: Update comes from the engine loop, scrapes from the server's own threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/telemetry/node_metrics.h"

namespace kvartal::telemetry {

class MetricsExporter {
 public:
  // `address` is host:port; port 0 takes a free one. Unavailable when it cannot listen there: the message says on what.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Start(const std::string& address);
  ~MetricsExporter();

  void Update(NodeMetrics metrics);
  // host:port that is really listened on.
  const std::string& address() const;

 private:
  struct Server;
  explicit MetricsExporter(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace kvartal::telemetry
