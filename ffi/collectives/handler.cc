#include "collectives/handler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

namespace uzip {

namespace ffi = xla::ffi;

std::optional<Values> values_of(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::BF16:
      return Values{DType::kBFloat16, 1};
    case ffi::F16:
      return Values{DType::kFloat16, 1};
    case ffi::F32:
      return Values{DType::kFloat32, 1};
    case ffi::F64:
      return Values{DType::kFloat64, 1};
    case ffi::C64:
      return Values{DType::kFloat32, 2};
    case ffi::C128:
      return Values{DType::kFloat64, 2};
    case ffi::F8E4M3FN:
      return Values{DType::kFloat8E4M3FN, 1};
    case ffi::F8E4M3FNUZ:
      return Values{DType::kFloat8E4M3FNUZ, 1};
    case ffi::F8E4M3B11FNUZ:
      return Values{DType::kFloat8E4M3B11FNUZ, 1};
    case ffi::F8E4M3:
      return Values{DType::kFloat8E4M3, 1};
    case ffi::F8E5M2:
      return Values{DType::kFloat8E5M2, 1};
    case ffi::F8E5M2FNUZ:
      return Values{DType::kFloat8E5M2FNUZ, 1};
    case ffi::F8E3M4:
      return Values{DType::kFloat8E3M4, 1};
    case ffi::F8E8M0FNU:
      return Values{DType::kFloat8E8M0FNU, 1};
    default:
      return std::nullopt;
  }
}

ffi::Error invalid(const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jax_uzip: " + what);
}

ffi::Error malformed(const std::string& what) { return ffi::Error(ffi::ErrorCode::kDataLoss, "jax_uzip: " + what); }

Parallel on_pool(ffi::ThreadPool& pool) {
  // The caller works too and waits only for tasks that have begun. So a pool whose threads are all taken, perhaps by
  // callers like this one, costs time and never a deadlock.
  struct Work {
    std::atomic<uint64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    uint64_t done = 0;
    std::exception_ptr thrown;
  };
  return [&pool](uint64_t n, const std::function<void(uint64_t)>& task) {
    if (n <= 1) return run_serially(n, task);
    auto work = std::make_shared<Work>();
    // A helper that begins after the last task was taken looks at `work` alone: `task` may be gone.
    auto help = [work, n, task = &task] {
      uint64_t mine = 0;
      std::exception_ptr thrown;
      for (uint64_t i; (i = work->next.fetch_add(1)) < n; ++mine) {
        try {
          (*task)(i);
        } catch (...) {
          thrown = std::current_exception();
        }
      }
      if (mine == 0) return;
      std::lock_guard<std::mutex> lock(work->mutex);
      if (thrown) work->thrown = thrown;
      work->done += mine;
      if (work->done == n) work->all_done.notify_all();
    };
    uint64_t helpers = std::min<uint64_t>(n - 1, static_cast<uint64_t>(std::max<int64_t>(pool.num_threads(), 1)) - 1);
    try {
      for (uint64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(help));
    } catch (const std::bad_alloc&) {  // then with fewer helpers
    }
    help();
    std::unique_lock<std::mutex> lock(work->mutex);
    work->all_done.wait(lock, [&] { return work->done == n; });
    if (work->thrown) std::rethrow_exception(work->thrown);
  };
}

}  // namespace uzip
