// The other process of nvme_catalog_contract_test: puts records 1, 2, 3, ... into the catalog at argv[1], for ever, and
// writes the number of each acknowledged one to the pipe argv[2]. It is killed.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "daemon/tier/nvme_catalog.h"
#include "tests/support/manual_executor.h"

int main(int argc, char** argv) {
  using kvartal::SlotId;
  using kvartal::tier::CatalogRecord;
  if (argc != 3) return 2;
  const int pipe = std::atoi(argv[2]);
  kvartal::testing::ManualExecutor executor;
  auto catalog = kvartal::tier::OpenRocksCatalog({.path = argv[1], .device_id = "d0"}, &executor);
  if (!catalog.ok()) return 1;
  uint32_t under_way = 0;
  for (uint32_t i = 1;; ++i) {
    CatalogRecord record;
    record.slot = SlotId(i);
    const uint64_t number = i;
    std::memcpy(record.header.identity.key.bytes.data(), &number, sizeof(number));
    record.header.identity.payload_bytes = 4096;
    ++under_way;
    const bool accepted = (*catalog)->Put(record, [i, pipe, &under_way](const absl::Status& status) {
      --under_way;
      if (status.ok() && ::write(pipe, &i, sizeof(i)) != sizeof(i)) std::abort();
    });
    if (!accepted) return 1;
    if (i % 7 == 0) (*catalog)->Delete(SlotId(i + 1'000'000));  // of nothing: other operations in between
    executor.RunUntil([&] { return under_way < 200; });
  }
}
