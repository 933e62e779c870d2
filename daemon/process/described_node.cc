#include "daemon/process/described_node.h"

namespace kvartal::process {

policy::NodeCapacity CapacityOf(const config::NodeConfig& config) {
  policy::NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = config.dram_bytes;
  for (const config::NvmeConfig& nvme : config.nvme) capacity.bytes[TierIndex(TierKind::kNvme)] += nvme.size_bytes;
  capacity.encrypts_nvme = !config.nvme_key_file.empty();
  return capacity;
}

control::NodeIdentities IdentitiesOf(const config::NodeConfig& config) {
  control::NodeIdentities known;
  known.uids = config.attest_uid;
  known.tokens = config.kubernetes.has_value();
  for (const config::SocketDoor& door : config.doors) known.doors.push_back(door.name);
  return known;
}

}  // namespace kvartal::process
