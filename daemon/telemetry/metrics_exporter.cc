#include "daemon/telemetry/metrics_exporter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/mutex.h"
#include "daemon/base/unique_fd.h"
#include "daemon/telemetry/metric_families.h"

namespace kvartal::telemetry {
namespace {

// Whoever connects and says nothing takes a thread for that long: scrapers wait for it, but not for half a minute.
constexpr const char* kServerThreads = "4";
constexpr const char* kSilenceMsMax = "1000";
constexpr std::chrono::milliseconds kNudgePeriod{10};

class Snapshot : public prometheus::Collectable {
 public:
  void Set(std::shared_ptr<const NodeMetrics> metrics) {
    MutexLock lock(mutex_);
    metrics_ = std::move(metrics);
  }
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::shared_ptr<const NodeMetrics> metrics;
    {
      MutexLock lock(mutex_);
      metrics = metrics_;
    }
    return metrics == nullptr ? std::vector<prometheus::MetricFamily>() : ToFamilies(*metrics);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const NodeMetrics> metrics_ ABSL_GUARDED_BY(mutex_);
};

// Any connection wakes the server's accepting thread, which otherwise looks only every two seconds whether it should
// end.
void Nudge(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Refused or not, nothing hangs on it: without the nudge the server ends two seconds later.
  std::ignore = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

struct MetricsExporter::Server {
  std::shared_ptr<Snapshot> snapshot = std::make_shared<Snapshot>();
  std::unique_ptr<prometheus::Exposer> exposer;
  std::string address;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(const std::string& address) {
  auto server = std::make_unique<Server>();
  try {
    server->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", kServerThreads, "request_timeout_ms", kSilenceMsMax});
    server->exposer->RegisterCollectable(server->snapshot);
    server->port = server->exposer->GetListeningPorts().at(0);
  } catch (const std::exception&) {  // it says the same whatever was wrong
    return absl::UnavailableError(
        absl::StrCat("metrics cannot listen on ", address,
                     ": the port is taken, or the address is not this machine's: set another metricsAddress"));
  }
  server->address = absl::StrCat(address.substr(0, address.rfind(':')), ":", server->port);
  return std::unique_ptr<MetricsExporter>(new MetricsExporter(std::move(server)));
}

MetricsExporter::MetricsExporter(std::unique_ptr<Server> server) : server_(std::move(server)) {}

MetricsExporter::~MetricsExporter() {
  std::promise<void> stopped;
  std::future<void> done = stopped.get_future();
  std::thread stopper([&] {
    server_->exposer.reset();
    stopped.set_value();
  });
  while (done.wait_for(kNudgePeriod) != std::future_status::ready) Nudge(server_->port);
  stopper.join();
}

void MetricsExporter::Update(NodeMetrics metrics) {
  server_->snapshot->Set(std::make_shared<const NodeMetrics>(std::move(metrics)));
}

const std::string& MetricsExporter::address() const { return server_->address; }

}  // namespace kvartal::telemetry
