#include "tests/sim/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "daemon/base/check.h"
#include "tests/sim/say.h"

namespace kvartal::sim {

Simulation::Simulation(const Plan& plan, bool print_log)
    : plan_(plan),
      random_(plan.seed ^ 0x51),
      log_(print_log),
      model_(plan_, &findings_),
      node_(plan_, this, [this](SlotId slot) { OnCatalogDelete(slot); }),
      weights_total_(std::accumulate(plan.weights.begin(), plan.weights.end(), 0u)) {
  for (uint32_t tenant = 0; tenant < plan_.tenants.size(); ++tenant) {
    const std::string name = "team-" + std::to_string(tenant) + "/kv";
    const uint32_t life = model_.AddLife(tenant, 1, DrawRules(plan_, name, 1, &random_));
    for (uint32_t i = 0; i < plan_.tenants[tenant].groups; ++i) model_.life(life).groups.emplace_back(++last_group_);
    current_.push_back(life);
  }
  Say(Describe(plan_));
  Boot();
}

Simulation::~Simulation() = default;

bool Simulation::Run(uint64_t events, volatile uint64_t* progress) {
  const uint64_t end = event_ + events;
  while (event_ < end && !findings_.any()) {
    ++event_;
    if (progress != nullptr) *progress = event_;
    log_.StartEvent(event_);
    Step();
    node_.CompleteSome(&random_);
    CheckAfterEvent();
  }
  if (!findings_.any()) {
    log_.StartEvent(++event_);
    DoSettle();
    CheckEverything();
    NoteBoot();
  }
  return !findings_.any();
}

EventKind Simulation::DrawEvent() {
  if (crash_next_ || event_ >= crash_at_) return EventKind::kCrash;
  uint64_t draw = random_.Below(weights_total_);
  for (size_t kind = 0; kind < kEventKinds; ++kind) {
    if (draw < plan_.weights[kind]) return static_cast<EventKind>(kind);
    draw -= plan_.weights[kind];
  }
  return EventKind::kComplete;
}

void Simulation::Step() {
  if (!lost_.empty() && random_.Chance(50)) return StoreLost();
  if (guarantee_waits_[TierIndex(TierKind::kDram)] && random_.Chance(50)) return DoLookup();
  switch (DrawEvent()) {
    case EventKind::kReserve:
      return DoReserve();
    case EventKind::kFinish:
      return DoFinish();
    case EventKind::kLookup:
      return DoLookup();
    case EventKind::kLoad:
      return DoLoad();
    case EventKind::kRelease:
      return DoRelease();
    case EventKind::kPin:
      return random_.Chance(80) ? DoPin() : DoHint();
    case EventKind::kHostile:
      return DoHostile();
    case EventKind::kGroupEnd:
      return DoGroupEnd();
    case EventKind::kNamespace:
      return DoNamespace();
    case EventKind::kAdvance:
      return DoAdvance();
    case EventKind::kComplete:
      for (int i = 0; i < 4; ++i) node_.CompleteOne(&random_);
      return Say("devices finish something");
    case EventKind::kPolicy:
      return DoPolicy();
    case EventKind::kTenantLife:
      return DoTenantLife();
    case EventKind::kDrop:
      return DoDrop();
    case EventKind::kTrouble:
      return DoTrouble();
    case EventKind::kCrash:
      return DoCrash();
    case EventKind::kSettle:
      return DoSettle();
  }
}

bool Simulation::AnyLife(uint32_t* life) {
  *life = random_.Pick(current_);
  return model_.life(*life).in_policy;
}

bool Simulation::Open(uint32_t index, uint32_t space) {
  Life& life = model_.life(index);
  if (life.ns.empty()) {
    if (!node_.engine().OpenMemory(life.id).ok()) return false;
    life.ns.assign(plan_.layouts.size(), NamespaceId::None());
    life.namespace_users.assign(plan_.layouts.size(), 0);
  }
  return life.namespace_users[space] > 0 || OpenNamespace(&life, space);
}

bool Simulation::OpenNamespace(Life* life, uint32_t space) {
  NamespaceDigest digest;
  digest.bytes.fill(static_cast<uint8_t>(space + 1));
  const auto ns = node_.engine().OpenNamespace(life->id, digest, plan_.layouts[space]);
  if (!ns.ok()) {
    Wrong("a namespace of " + life->name + " cannot be opened");
    return false;
  }
  const bool is_open = life->namespace_users[space] > 0;
  if (is_open && life->ns[space] != *ns) Wrong("a namespace of " + life->name + " is opened again as another");
  // Its number may be another's meanwhile.
  if (!is_open && life->ns[space].valid()) coverage_.Note(Situation::kNamespaceReopened);
  life->ns[space] = *ns;
  ++life->namespace_users[space];
  return true;
}

Chain Simulation::AnyChain() {
  Chain chain;
  if (random_.Chance(85)) {
    // Some are asked for more than others.
    const uint64_t which = random_.Chance(60) ? random_.Below(3) : random_.Below(kChains);
    const auto start = static_cast<uint32_t>(which * kChainLength);
    const auto skip = random_.Chance(70) ? 0u : static_cast<uint32_t>(random_.Below(kChainLength));
    const uint32_t most = std::min(plan_.chain_length_max, kChainLength - skip);
    chain = {start + skip, static_cast<uint32_t>(random_.Between(1, most))};
  } else {
    const auto skip = static_cast<uint32_t>(random_.Below(kNumbers - kScanStart));
    const uint32_t most = std::min(plan_.chain_length_max, kNumbers - kScanStart - skip);
    chain = {kScanStart + skip, static_cast<uint32_t>(random_.Between(1, most))};
  }
  return chain;
}

std::vector<BlockKey> Simulation::KeysOf(const Chain& chain) const {
  std::vector<BlockKey> keys;
  keys.reserve(chain.count);
  for (uint32_t i = 0; i < chain.count; ++i) keys.push_back(KeyOf(chain.first + i));
  return keys;
}

std::vector<policy::TenantRules> Simulation::RulesInForce() {
  std::vector<policy::TenantRules> rules;
  for (const uint32_t life : current_) {
    if (model_.life(life).in_policy) rules.push_back(model_.life(life).rules);
  }
  return rules;
}

const std::byte* Simulation::BytesAt(uint32_t life, uint64_t offset) {
  return node_.dram().arena(node_.engine().DomainOf(model_.life(life).id))->data() + offset;
}

uint32_t Simulation::GenerationAt(uint32_t life, uint64_t offset) {
  return node_.dram().GenerationOf(node_.engine().DomainOf(model_.life(life).id),
                                   SlotId(static_cast<uint32_t>(offset / kSlotAlignBytes)));
}

// A restart may bring back a record whose slot was overwritten since; what is in the clear, or its key, may have to go.
bool Simulation::ReadsMayFail(uint32_t life) {
  return plan_.disk_lies() || plan_.encrypts || model_.boots() > 1 || model_.life(life).scribbles;
}

void Simulation::OnDurable(GroupId, ReservationId reservation) {
  coverage_.Note(Situation::kDurable);
  const auto slot = node_.recorded();
  if (slot.has_value()) {
    const uint32_t in_the_clear = NonceOnNvme(*slot);
    if (plan_.encrypts && in_the_clear == 0) coverage_.Note(Situation::kEncrypted);
    return model_.Durable(reservation, *slot, in_the_clear);
  }
  // Stored anew beside a copy that is durable already.
  const std::optional<BlockRef> ref = model_.EndAwaitDurable(reservation);
  if (!ref.has_value()) return;
  if (TimesFound(*ref) == 0) Wrong("a block is called durable before its record is written");
  coverage_.Note(Situation::kDurableBeside);
}

size_t Simulation::TimesFound(const BlockRef& ref) const {
  NamespaceDigest digest;
  digest.bytes.fill(static_cast<uint8_t>(ref.space + 1));
  return node_.TimesFound(digest, KeyOf(ref.number));
}

// Of a drop that a client asked for, its answer tells more.
void Simulation::OnDeletion(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) {
  kept(true);
  last_receipt_ = receipt;
  Say("  receipt: ", receipt.blocks, " blocks of ", receipt.tenant, " (", policy::DropReasonName(receipt.reason), ")");
  // A block counts with its last copy, which a removal may have taken.
  if (receipt.blocks + receipt.bytes() == 0 && receipt.reason == policy::DropReason::kMaxAge)
    Wrong("a receipt for nothing");
  // Nobody knows what lies on a disk that is absent.
  const uint64_t unerased = receipt.unerased_blocks - std::min<uint64_t>(receipt.unerased_blocks, node_.absent_disks());
  if (unerased > 0 && !plan_.disk_lies()) Wrong("the disk is sound, and did not take zeros");
  if (receipt.reason == policy::DropReason::kRemoved && receipt.unerased_blocks < node_.absent_disks())
    Wrong("a removal is certified, and a disk is absent");
  // What a crash cut short is of an earlier life of the name, whoever has it now.
  if (receipt.reason != policy::DropReason::kRemoved || receipt.resumed) return;
  for (const uint32_t index : current_) {
    Life& life = model_.life(index);
    if (life.name != receipt.tenant || life.dropping || !life.was_removed) continue;
    Say("  ", life.rules.uid, " was removed, and is erased: ", receipt.blocks, " blocks");
    coverage_.Note(Situation::kRemovedErased);
    model_.StartDrop(index);
    model_.EndDrop(index, model_.next_nonce(), unerased == 0 && !catalog_failed_);
    if (unerased == 0 && !catalog_failed_) NoteInformed();
  }
}

void Simulation::OnGranted(DomainId, uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset % kExtentAlignBytes != 0) Wrong("a range is granted that is none");
}

}  // namespace kvartal::sim
