// What was promised to be kept: pins, and what is durable.
#include <algorithm>

#include "daemon/base/limits.h"
#include "tests/sim/model.h"

namespace kvartal::sim {

void Model::Pin(const BlockRef& ref, int64_t until_ms, int64_t now_ms) {
  Life& life = lives_[ref.life];
  Life::Block& block = at(ref);
  block.pinned_until_ms = std::max(block.pinned_until_ms, until_ms);
  block.ever_pinned_until_ms = std::max(block.ever_pinned_until_ms, until_ms);
  if (std::find(life.pins.begin(), life.pins.end(), ref) == life.pins.end()) life.pins.push_back(ref);
  std::erase_if(life.pins, [&](const BlockRef& pin) { return at(pin).pinned_until_ms <= now_ms; });
  uint64_t pinned_bytes = 0;
  for (const BlockRef& pin : life.pins) pinned_bytes += plan_.layouts[pin.space].SlotBytes();
  const uint64_t guarantee_bytes =
      life.rules.tier(TierKind::kDram).guarantee_bytes + life.rules.tier(TierKind::kNvme).guarantee_bytes;
  if (pinned_bytes > guarantee_bytes && !life.quota_lowered)
    findings_.Add(absl::StrCat(life.name, " has pinned more than its guarantee"));
}

// --- deleting

bool Model::PinsAreOnNvme(const Life& life) const {
  uint64_t bytes = 0;
  for (const BlockRef& pin : life.pins) bytes += plan_.layouts[pin.space].SlotBytes() + kNvmeHeaderBytes;
  return bytes <= life.least_nvme_guarantee;
}

bool Model::HasPins(int64_t now_ms) {
  for (Life& life : lives_) {
    for (const BlockRef& pin : life.pins) {
      if (at(pin).pinned_until_ms > now_ms) return true;
    }
  }
  return false;
}

std::vector<Model::DurablePin> Model::DurablePins(int64_t now_ms) {
  std::vector<DurablePin> pins;
  if (plan_.disk_lies() || plan_.planted != Planted::kNothing) return pins;
  for (const auto& [slot, nonce] : durable_) {
    const BlockRef ref = versions_[nonce].block;
    const Life& life = lives_[ref.life];
    const bool may_end = life.quota_lowered || life.was_removed || life.dropping || !life.in_policy ||
                         life.rules.max_entries != policy::kNoLimit || !PinsAreOnNvme(life);
    if (may_end || life.spaces.empty() || MayBeUnreadable(nonce)) continue;
    const Life::Block& block = at(ref);
    const bool in_force = block.pinned_until_ms > now_ms;
    if (in_force && block.nonce == nonce && block.maybe) pins.push_back({ref, nonce, block.pinned_until_ms, slot});
  }
  return pins;
}

bool Model::MustBeKept(const DurablePin& pin, int64_t now_ms, int64_t latest_ms) const {
  return pin.until_ms > now_ms + 3 * kTickMs && !MayHaveAged(versions_[pin.nonce], std::max(now_ms, latest_ms));
}

bool Model::MustHaveSurvived(uint32_t nonce, int64_t now_ms, int64_t latest_ms) const {
  const Version& version = versions_[nonce];
  const Life& life = lives_[version.block.life];
  const policy::TenantRules& rules = life.rules;
  // Records that ought to be gone take room from others.
  if (plan_.planted == Planted::kLosesDeletes) return false;
  if (!life.in_policy || rules.max_entries != policy::kNoLimit || MayBeUnreadable(nonce)) return false;
  // A clock that was set back may have it committed in the future.
  const auto idle_ms = static_cast<uint64_t>(std::max<int64_t>(now_ms - version.commit_ms, 0)) + 3 * kTickMs;
  const uint64_t ttl_ms = rules.ttl_ms[TierIndex(TierKind::kNvme)];
  return (ttl_ms == 0 || idle_ms < ttl_ms) && !MayHaveAged(version, std::max(now_ms, latest_ms));
}

}  // namespace kvartal::sim
