// The catalog of a virtual node, which is never started twice: it takes every record and keeps none.
// Confined to the thread of the node.
#pragma once

#include <map>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/tier/nvme_catalog.h"

namespace kvartal::trace_engine {

class BytelessCatalog : public tier::NvmeCatalog {
 public:
  explicit BytelessCatalog(Executor* executor) : executor_(executor) {}

  bool Put(const tier::CatalogRecord& record, absl::AnyInvocable<void(absl::Status)> done) override;
  void Delete(SlotId) override {}
  bool Refresh(SlotId, const tier::RecordTimes&, absl::AnyInvocable<void(absl::Status)> done) override;
  void KeepTime(int64_t) override {}
  int64_t kept_time_ms() const override { return 0; }
  void PutTombstone(const tier::OwnerUidHash& owner, int64_t before_wall_ms,
                    absl::AnyInvocable<void(absl::Status)> done) override;
  void PutSalt(const tier::OwnerSalt&) override {}
  std::vector<tier::OwnerSalt> salts() const override { return {}; }
  void PutErasure(const tier::ErasureRecord&) override {}
  void EndErasure(uint64_t) override {}
  std::vector<tier::ErasureRecord> open_erasures() const override { return {}; }
  void Load(absl::AnyInvocable<void(std::vector<tier::CatalogRecord>)> batch,
            absl::AnyInvocable<void(absl::Status)> done) override;
  void Flush(absl::AnyInvocable<void(absl::Status)> done) override;
  // There is nothing to look for in the headers either.
  tier::DiskSet incomplete() const override { return tier::kNoDisk; }
  void MarkComplete() override {}
  std::map<tier::OwnerUidHash, int64_t> tombstones() const override { return {}; }

 private:
  void End(absl::AnyInvocable<void(absl::Status)> done);
  Executor* const executor_;
};

}  // namespace kvartal::trace_engine
