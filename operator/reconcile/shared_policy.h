// A policy that is there or not, shared by all who say the same of it: of ten thousand few change at a time, and a copy
// of each for every step of a decision would be most of its time.
// A plain value. Invariant: what is shared is not changed; who edits gets a copy of his own.
#pragma once

#include <memory>
#include <utility>

#include "crds/tenant_policy.h"

namespace kvartal::reconcile {

class SharedPolicy {
 public:
  SharedPolicy() = default;
  SharedPolicy(crds::TenantPolicy policy)  // NOLINT(google-explicit-constructor): it is one
      : policy_(std::make_shared<const crds::TenantPolicy>(std::move(policy))) {}

  bool has_value() const { return policy_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  const crds::TenantPolicy& operator*() const { return *policy_; }
  const crds::TenantPolicy* operator->() const { return policy_.get(); }
  // Valid until it is shared or edited again.
  crds::TenantPolicy* Edit() {
    auto own = std::make_shared<crds::TenantPolicy>(policy_ == nullptr ? crds::TenantPolicy() : *policy_);
    policy_ = own;
    return own.get();
  }
  void reset() { policy_.reset(); }
  // Whether it is the very same, not only an equal one.
  bool SharedWith(const SharedPolicy& other) const { return policy_ == other.policy_; }

  friend bool operator==(const SharedPolicy& a, const SharedPolicy& b) {
    return a.policy_ == b.policy_ || (a.policy_ != nullptr && b.policy_ != nullptr && *a.policy_ == *b.policy_);
  }

 private:
  std::shared_ptr<const crds::TenantPolicy> policy_;
};

}  // namespace kvartal::reconcile
