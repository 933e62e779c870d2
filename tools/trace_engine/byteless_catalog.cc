#include "tools/trace_engine/byteless_catalog.h"

#include <utility>

namespace kvartal::trace_engine {

using Done = absl::AnyInvocable<void(absl::Status)>;

void BytelessCatalog::End(Done done) {
  executor_->Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
}

bool BytelessCatalog::Put(const tier::CatalogRecord&, Done done) {
  End(std::move(done));
  return true;
}

bool BytelessCatalog::Refresh(SlotId, const tier::RecordTimes&, Done done) {
  End(std::move(done));
  return true;
}

void BytelessCatalog::PutTombstone(const tier::OwnerUidHash&, int64_t, Done done) { End(std::move(done)); }

void BytelessCatalog::Load(absl::AnyInvocable<void(std::vector<tier::CatalogRecord>)>, Done done) {
  End(std::move(done));
}

void BytelessCatalog::Flush(Done done) { End(std::move(done)); }

}  // namespace kvartal::trace_engine
