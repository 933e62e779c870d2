#!/usr/bin/env python3
"""Bugs planted in the source of the engine, one at a time: the simulator has to find every one.

usage: mutations.py [NAME ...]     all of them, or those whose names begin so
       mutations.py --list         builds nothing: only looks whether every one still has a place in the source
Builds in build-mutations/, a copy of the tree. Prints a line a bug: how many events it took. Exits 1 when one was not
found, or when the source it changes is no longer there.
"""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TREE = os.path.join(ROOT, 'build-mutations')
BUILD = os.path.join(TREE, 'build')  # laid out as the original, so that a compiler cache knows most of it
EVENTS_PER_SEED = 5000
SEEDS = 200  # as many events as `make test` has

ENGINE, TIER, POLICY, INDEX = 'daemon/engine/', 'daemon/tier/', 'daemon/policy/', 'daemon/index/'

# name: [(file, from, to), ...]. Each `from` is in its file exactly once.
MUTATIONS = {
    'refunds-twice': [
        (ENGINE + 'space.cc',
         '  state_.ledger.Refund(tenant.id, TierKind::kDram, *bytes, /*still_reclaiming=*/true);\n',
         '  state_.ledger.Refund(tenant.id, TierKind::kDram, *bytes, /*still_reclaiming=*/true);\n'
         '  if (state_.ledger.account(tenant.id, TierKind::kDram).charged_bytes >= *bytes)\n'
         '    state_.ledger.Refund(tenant.id, TierKind::kDram, *bytes);\n')],
    'forgets-a-refund': [
        (ENGINE + 'movement.cc', '    residency_.GiveBackNvme(tenant, slot);\n',
         '    state_.devices.nvme->Give(tenant.domain(), slot);\n'
         '    (void)state_.devices.nvme->Shrink(tenant.domain(), 0, [] {});\n')],
    'frees-what-is-not-punched': [
        (ENGINE + 'space.cc', '*bytes, /*still_reclaiming=*/true);', '*bytes, /*still_reclaiming=*/false);')],
    'evicts-a-leased-block': [
        (INDEX + 'prefix_index.h', 'return lease_count > 0 && tier == TierKind::kDram;',
         'return lease_count > 0 && tier == TierKind::kHbm;'),
        (ENGINE + 'residency.cc',
         '    if (IsCandidate(entry, TierKind::kDram)) '
         'tenant.order(TierKind::kDram).Remove(id, TraitsOf(entry));\n', ''),
        (ENGINE + 'residency.cc', '  KV_CHECK(tier != TierKind::kDram || entry.lease_count == 0);\n', '')],
    'takes-the-last-copy-of-a-held-block': [
        (ENGINE + 'residency.cc', 'if (entry.hold_count == 0 && !entry.pinned) return true;',
         'if (Movable(id, tier)) return true;')],
    'serves-a-block-being-filled': [
        (ENGINE + 'engine_state.cc', 'if (entry.state != BlockState::kCommitted || entry.erasing',
         'if (entry.erasing')],
    'serves-with-a-shard-missing': [
        (ENGINE + 'store_path.cc', '  if (filling.shards_missing != 0) {\n',
         '  if (filling.shards_missing != 0 && filling.shards_written() != 0) {\n')],
    'shows-an-aborted-block': [
        (ENGINE + 'store_path.cc', '  const SlotId slot = residency_.Abandon(id);\n',
         '  if (done != 0) return residency_.Commit(id), true;\n'
         '  const SlotId slot = residency_.Abandon(id);\n')],
    'gives-a-slot-that-is-being-written': [
        (ENGINE + 'store_path.cc', '  if (it->second.written == 0) Give(reservation);\n', '  Give(reservation);\n')],
    'takes-the-commit-of-another-group': [
        (ENGINE + 'store_path.cc', '  if (filling.group != group) return CommitOutcome::kNotYours;\n', '')],
    'answers-a-group-that-ended': [
        (ENGINE + 'store_path.cc', 'return waiter.group() == group; });',
         'return waiter.group() == group && false; });')],
    'skips-the-limit': [
        (POLICY + 'quota_ledger.cc',
         '  if (bytes > Room(account.limit_bytes, account.charged_bytes)) return {Charge(), Refusal::kTenantLimit};\n',
         '  if (bytes == 0)\n'
         '    if (bytes > Room(account.limit_bytes, account.charged_bytes)) '
         'return {Charge(), Refusal::kTenantLimit};\n'),
        (ENGINE + 'space.cc', 'room = std::min(by_limit, capacity - std::min(capacity, used));',
         'room = by_limit * 0 + capacity - std::min(capacity, used);')],
    'recovers-past-the-limit': [
        (ENGINE + 'recovery.cc',
         'if (state_.ledger.Adopt(tenant.id, TierKind::kNvme, payload_bytes + kNvmeHeaderBytes)) return',
         '(void)state_.ledger.Adopt(tenant.id, TierKind::kNvme, payload_bytes + kNvmeHeaderBytes);\n  return')],
    'pins-past-the-guarantee': [
        (ENGINE + 'pins.cc',
         'if (may_be_there && wanted_bytes <= tenant.rules.tier(tier).guarantee_bytes) return tier;',
         'if (may_be_there && wanted_bytes > 0) return tier;')],
    'serves-what-expired': [
        (ENGINE + 'engine_state.cc', ' || policy::Expired(owner.rules, ages, candidate, now_tick)) continue;',
         ' || (policy::Expired(owner.rules, ages, candidate, now_tick) && false)) continue;')],
    'forgets-max-age': [
        (POLICY + 'block_deadline.cc', 'return now_tick >= AgeLimitOf(rules, ages);',
         'return now_tick >= AgeLimitOf(rules, ages) && false;')],
    'forgets-the-tombstone': [
        (ENGINE + 'removal.cc', 'if (state_.devices.catalog == nullptr) return Continue(tenant);',
         'if (state_.devices.catalog != nullptr || true) return Continue(tenant);'),
        (ENGINE + 'receipts.cc', '  receipt.before_wall_ms = before_wall_ms;\n',
         '  receipt.before_wall_ms = 0 * before_wall_ms;\n')],
    'serves-while-it-erases': [
        (ENGINE + 'engine_state.cc', ' || entry.erasing || owner.dropping) return false;',
         ' || entry.erasing) return false;')],
    'serves-what-it-zeroes': [
        (ENGINE + 'engine_state.cc', ' || entry.erasing || owner.dropping) return false;',
         ' || owner.dropping) return false;')],
    'deletes-by-age-without-zeroing': [
        (ENGINE + 'expiry.cc', '    EraseOverAge(id, now_tick);\n    return kTimerDropWork;',
         '    if (residency_.Removable(id)) {\n      residency_.DropBlock(id, policy::DropReason::kMaxAge);\n'
         '    } else {\n      EraseOverAge(id, now_tick);\n    }\n    return kTimerDropWork;')],
    'takes-below-the-guarantee': [
        (POLICY + 'fair_share.cc',
         'if (claim == Claim::kNone || victim.used_bytes <= victim.guarantee_bytes) return false;',
         'if (claim == Claim::kNone) return false;'),
        # From those above theirs first it would hardly matter.
        (POLICY + 'fair_share.cc', 'if (over_a != over_b) return over_a > over_b;',
         'if (over_a != over_b) return over_a < over_b;')],
    'gives-what-was-emptied-to-anybody': [
        (ENGINE + 'space.cc',
         'return state_.SomebodyTakes(tier) ? std::min(room, shares_.EntitledRoom(tenant, tier)) : room;',
         'return room;')],
    'refuses-what-is-guaranteed': [
        (ENGINE + 'space_takeover.cc',
         'if (claim != Claim::kGuarantee || !shares_.Owed(tenant, tier, claim)) return false;',
         'if (claim == Claim::kGuarantee || tier == TierKind::kDram) return false;')],
    'leaves-fragments-on-nvme': [
        (ENGINE + 'compaction.cc', 'if (!nvme.StartLeaving(slot_bytes)) return', 'if (slot_bytes > 0) return'),
        (ENGINE + 'space_takeover.cc', '(scattered && claim != Claim::kGuarantee)', 'scattered')],
    'leases-past-the-cap': [
        (ENGINE + 'residency.cc', 'tenant.kept_bytes + more_bytes > LeaseCapBytes(tenant);',
         'tenant.kept_bytes + more_bytes > LeaseCapBytes(tenant) + kGiB;')],
    'renews-for-ever': [
        (ENGINE + 'space_takeover.cc', 'if (!somebody_takes && !drains && tenant.rules.max_age_ms == 0) return true;',
         'if (!somebody_takes && (!drains || !leaves)) return true;')],
    'loads-what-is-over-age': [
        (ENGINE + 'load_operation.cc', 'return tenant_.rules.max_age_ms > 0 && path_',
         'return tenant_.rules.max_age_ms > UINT64_MAX - 1 && path_'),
        (ENGINE + 'space_takeover.cc',
         '  if (tenant.rules.max_age_ms > 0 && state_.OverAge(hold.entry, state_.NowTick())) return false;\n', '')],
    'drains-around-what-is-leased': [
        (ENGINE + 'space.cc',
         '    if (EmptyExtent(tenant, DropReason::kOverLimit, policy::Claim::kGuarantee, kNoRequest, &rounds) != '
         'Step::kRetry)\n      break;\n',
         '    if (GiveBackEmpty(tenant) > 0) continue;\n'
         '    const EntryId victim = Victim(tenant, TierKind::kDram, kNoRequest);\n'
         '    if (!victim.valid()) break;\n'
         '    residency_.DropCopy(victim, TierKind::kDram, DropReason::kOverLimit);\n'
         '    --rounds;\n')],
    'holds-past-a-lowered-limit': [
        (ENGINE + 'space.cc', 'tenant.stuck_on_nvme = !victim.valid();', 'tenant.stuck_on_nvme = false;')],
    'gives-away-what-is-pinned': [
        (ENGINE + 'residency.cc', '         !entry.leased_in(tier) && !entry.pinned_in(tier);\n',
         '         !entry.leased_in(tier);\n'),
        (ENGINE + 'residency.cc', '!entry.leased_in(tier) && !entry.pinned_in(tier) && !entry.writing &&',
         '!entry.leased_in(tier) && !entry.writing &&')],
    'forgets-a-namespace-that-has-blocks': [
        (ENGINE + 'namespaces.cc', 'if (!space.tenant.valid() || space.users > 0 || space.entries > 0) return;',
         'if (!space.tenant.valid() || space.users > 0) return;')],
    'forgets-pins-at-a-restart': [
        (ENGINE + 'pins.cc',
         'state_.timers.Schedule(id, tier == TierKind::kNvme ? state_.NowTick() : '
         'std::min(state_.timers.DueOf(id), until));',
         'entry.times_unrecorded = false;\n  state_.timers.Schedule(id, until);')],
    'dates-what-is-new-before-a-drop': [
        (ENGINE + 'removal.cc',
         '  state_.devices.catalog->KeepTime(std::max(tenant.removal.before_wall_ms, '
         'state_.WallMsOfTick(state_.NowTick())));\n', '')],
    'answers-with-an-ended-fill': [
        (ENGINE + 'store_path.cc', '    TakeBackEnded();\n', '')],
    'mixes-up-tenants': [
        (ENGINE + 'namespaces.cc', 'const auto key = std::make_pair(tenant_id.value(), digest);',
         'const auto key = std::make_pair(uint32_t{0}, digest);')],
    'reuses-a-slot-without-a-new-generation': [
        (TIER + 'dram_tier.cc',
         'does not count.\n  domain.arena->generations()[slot.value()].fetch_add(1,',
         'does not count.\n  domain.arena->generations()[slot.value()].fetch_add(0,')],
    'skips-the-checksum': [
        (TIER + 'nvme_transfer.cc', 'if (checksum == found.payload_xxh3) return', 'if (checksum != 0) return')],
    'skips-the-identity': [
        (TIER + 'nvme_transfer.cc', '  if (differs != nullptr)\n', '  if (differs != nullptr && false)\n'),
        (TIER + 'nvme_transfer.cc', 'if (header.generation != 0 && found', 'if (header.generation == 1 && found')],
    'durable-before-its-record': [
        (ENGINE + 'movement.cc', '  state_.recording[record.slot] = record.header.generation;\n',
         '  state_.recording[record.slot] = record.header.generation;\n  MarkDurable(record);\n')],
    'forgets-a-child': [
        (INDEX + 'prefix_index.cc', '  KV_CHECK(parent.children > 0);\n  --parent.children;\n}', '  (void)parent;\n}')],
    'loads-a-block-being-filled': [
        (ENGINE + 'load_operation.cc', 'if (entry.state != BlockState::kCommitted || entry.erasing) return true;',
         'if (!entry.resident(TierKind::kDram) && !entry.resident(TierKind::kNvme)) return true;')],
    'gives-up-what-was-stored-anew-before-its-record-came': [
        (ENGINE + 'recovery.cc', '  const bool stored_anew = id.valid()',
         '  if (id.valid() && state_.index.at(id).state != BlockState::kGone) return false;\n'
         '  const bool stored_anew = id.valid()')],
    'gives-up-what-is-stored-anew-on-a-disk-that-is-offline': [
        (ENGINE + 'store_path.cc',
         'const bool kept = entry.resident(TierKind::kNvme) && !state_.Expired(id, TierKind::kNvme, now_tick);',
         'const bool kept = false;')],
    'loses-the-kept-copy-with-an-aborted-fill': [
        (ENGINE + 'residency.cc',
         '  if (entry.resident(TierKind::kNvme)) {\n    entry.state = BlockState::kCommitted;\n',
         '  if (entry.resident(TierKind::kNvme)) {\n    entry.state = BlockState::kCommitted;\n'
         '    JoinOrders(id);\n    DropCopy(id, TierKind::kNvme, policy::DropReason::kIdle);\n    return slot;\n')],
    'writes-secrets-in-the-clear': [
        (TIER + 'nvme_transfer.cc', 'if (now.required) return Encrypt', 'if (now.required && false) return Encrypt')],
    'calls-a-copy-durable-that-may-not-be-served': [
        (ENGINE + 'movement.cc', '  if (!residency_.ServedFromNvme(entry)) return;\n', '  (void)entry;\n')],
    'gives-up-copies-for-keys-that-are-there': [
        (ENGINE + 'residency.cc', ' || entry.reading || ServedFromNvme(entry)) return false;',
         ' || entry.reading) return false;')],
    'tells-no-session-that-its-tenant-begins-anew': [
        (ENGINE + 'removal.cc', 'if (returns && state_.observer != nullptr)',
         'if (returns && state_.observer != nullptr && name.empty())')],
    'gives-a-slot-whose-writer-is-at-it': [
        (ENGINE + 'store_path.cc', '.shards_written() & ~done;',
         '.shards_written() & ~done & ~kAllShards;')],
    'shuts-a-tenant-out-while-a-disk-hangs': [
        (ENGINE + 'removal.cc', 'if (stuck) StandAside(*tenant);', 'if (stuck && false) StandAside(*tenant);')],
    'gives-up-a-block-that-a-device-failed-to-read': [
        (ENGINE + 'movement.cc',
         'absl::IsDataLoss(status) || entry.read_errors == kReadErrorsPerBlockMax;', '!status.ok();')],
    'keeps-quiet-about-a-lost-block': [
        (ENGINE + 'load_operation.cc', 'result.read_failed = position == lost_ ||', 'result.read_failed =')],
}


def run(argv, **kwargs):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kwargs)


def copy_tree():
    """Only what changed, so that what was built stays built."""
    listed = run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=ROOT).stdout.split()
    for name in listed:
        source, target = os.path.join(ROOT, name), os.path.join(TREE, name)
        if not os.path.isfile(source) or name.startswith('docs/'):
            continue
        with open(source, 'rb') as file:
            content = file.read()
        if os.path.exists(target):
            with open(target, 'rb') as file:
                if file.read() == content:
                    continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, 'wb') as file:
            file.write(content)
        shutil.copymode(source, target)


def build():
    environment = dict(os.environ, CCACHE_BASEDIR=TREE, CCACHE_NOHASHDIR='true')
    if not os.path.exists(os.path.join(BUILD, 'CMakeCache.txt')):
        made = run(['cmake', '-S', TREE, '-B', BUILD, '-G', 'Ninja', '-DCMAKE_BUILD_TYPE=Release'],
                   env=environment)
        if made.returncode != 0:
            sys.exit(made.stdout)
    return run(['cmake', '--build', BUILD, '--target', 'sim_test'], env=environment)


def events_until_found():
    """None when nothing was found. The finding, too."""
    environment = dict(os.environ, KVARTAL_BUGS_FATAL='1')
    for seed in range(1, SEEDS + 1):
        ran = run([os.path.join(BUILD, 'tests', 'sim_test'), f'--seed={seed}', f'--events={EVENTS_PER_SEED}'],
                  env=environment)
        if ran.returncode == 0:
            continue
        at = re.search(r'^seed \d+, event (\d+): (.*)$', ran.stdout, re.M)
        check = re.search(r'check failed at .*', ran.stdout)
        said = check.group(0) if check else at.group(2) if at else f'status {ran.returncode}'
        return (seed - 1) * EVENTS_PER_SEED + (int(at.group(1)) if at else 0), said
    return None, ''


def mutate(name):
    """Returns what to print, and whether the bug was found."""
    originals = {}
    try:
        for path, before, after in MUTATIONS[name]:
            full = os.path.join(TREE, path)
            with open(full, encoding='utf-8') as file:
                text = file.read()
            originals.setdefault(full, text)
            if text.count(before) != 1:
                return f'{path} has "{before.strip()[:60]}" {text.count(before)} times: adapt the list', False
            with open(full, 'w', encoding='utf-8') as file:
                file.write(text.replace(before, after))
        made = build()
        if made.returncode != 0:
            return 'does not compile:\n' + '\n'.join(made.stdout.splitlines()[-15:]), False
        events, said = events_until_found()
        if events is None:
            return f'NOT FOUND in {SEEDS * EVENTS_PER_SEED} events', False
        return f'found after {events} events: {said}', True
    finally:
        for full, text in originals.items():
            with open(full, 'w', encoding='utf-8') as file:
                file.write(text)


def places_missing():
    """Changes whose text is not in the source exactly once."""
    missing = []
    for name, changes in MUTATIONS.items():
        for path, before, _ in changes:
            with open(os.path.join(ROOT, path), encoding='utf-8') as file:
                count = file.read().count(before)
            if count != 1:
                missing.append(f'{name}: {path} has "{before.strip()[:60]}" {count} times: adapt the list')
    return missing


def main():
    if sys.argv[1:] == ['--list']:
        missing = places_missing()
        sys.exit('\n'.join(missing) if missing else print('\n'.join(MUTATIONS)))
    wanted = [name for name in MUTATIONS if len(sys.argv) == 1 or any(name.startswith(a) for a in sys.argv[1:])]
    if not wanted:
        sys.exit('no such bug; there are: ' + ' '.join(MUTATIONS))
    copy_tree()
    made = build()
    if made.returncode != 0:
        sys.exit(made.stdout)
    events, said = events_until_found()
    if events is not None:
        sys.exit(f'without any planted bug, after {events} events: {said}')
    missed = 0
    for name in wanted:
        said, found = mutate(name)
        missed += not found
        print(f'{name:40s} {said}', flush=True)
    print(f'{len(wanted) - missed} of {len(wanted)} planted bugs found')
    sys.exit(1 if missed else 0)


if __name__ == '__main__':
    main()
