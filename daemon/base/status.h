// Failures a caller can act on: absl::Status and the two macros that pass them up. Normal outcomes (a miss, a refusal)
// are values with names, never a Status.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KV_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status kv_status = (expr); !kv_status.ok()) return kv_status; \
  } while (0)

#define KV_CONCAT_INNER(a, b) a##b
#define KV_CONCAT(a, b) KV_CONCAT_INNER(a, b)
#define KV_ASSIGN_OR_RETURN(lhs, expr) KV_ASSIGN_OR_RETURN_NAMED(KV_CONCAT(kv_result_, __LINE__), lhs, expr)
#define KV_ASSIGN_OR_RETURN_NAMED(result, lhs, expr)   \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)
