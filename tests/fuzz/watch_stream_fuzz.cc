// Any bytes as what an API server sends, in pieces of any size: the state that is kept is always that of some list and
// the events after it, and there is always a next step.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "daemon/base/check.h"
#include "operator/kube/line_framer.h"
#include "operator/kube/list_watch.h"
#include "operator/kube/object_store.h"
#include "operator/kube/sparse_json.h"

namespace {

using namespace kvartal::kube;  // NOLINT

const nlohmann::json kWanted = {
    {"metadata", {{"namespace", true}, {"name", true}, {"uid", true}, {"resourceVersion", true}}}};

// Keeps the books a consumer would, and compares them with the store's.
struct Consumer {
  ObjectStore store;
  std::map<ObjectKey, ObjectStore::Object> known;

  void Take(ListWatchStep step) {
    for (WatchEvent& event : step.events) {
      for (const ObjectChange& change : store.Apply(std::move(event))) {
        if (change.deleted) {
          KV_CHECK(known.erase(change.key) == 1);
        } else {
          known[change.key] = change.object;
        }
      }
    }
    KV_CHECK(known == store.objects());
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t piece = data[0] + 1;
  std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  ListWatch machine(1, {}, false, data[0] % 2 == 0 ? nlohmann::json() : kWanted);
  Consumer consumer;
  LineFramer framer;
  int64_t now_ms = 0;
  machine.Start();
  // Lines are by turns a page of a list and an event of a watch, whichever the machine is at.
  bool listing = true;
  while (!text.empty()) {
    const bool fits = framer.Feed(text.substr(0, piece), [&](std::string_view line) {
      ListWatchStep step = listing ? machine.OnPage(ParseSparse(line, machine.wanted_of_page()), ++now_ms)
                                   : machine.OnLine(line, ++now_ms);
      KV_CHECK(!listing || step.next.has_value());
      if (step.next) listing = step.next->verb == NextRequest::Verb::kList;
      consumer.Take(std::move(step));
      return true;
    });
    KV_CHECK(fits);
    text.remove_prefix(std::min(piece, text.size()));
  }
  return 0;
}
