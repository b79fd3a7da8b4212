// A C interface to the ExecuTorch runtime: open a file, load one of its programs, query its inputs and outputs,
// and run it.
//
// A program is a method of a .pte file that takes and returns tensors of fixed shapes. Only pointers cross this
// interface: the caller owns the memory of inputs and outputs, and must have checked its size by sedge_et_tensor.
// The programs of a file share the memory of their intermediate results, so only one of them may be loaded or run
// at a time. Different files are independent. Functions that can fail return 0 or a null pointer. Then
// sedge_et_error() returns the reason, separately for each thread.

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/platform.h>

#include <malloc.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace executorch::extension::threadpool {
// Declared here because the wheel contains this class's library, but not its header.
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
  size_t get_thread_count() const;
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace {

using executorch::extension::BufferDataLoader;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::TensorInfo;

constexpr int kAbi = 1;               // version of the functions below
constexpr size_t kMaxError = 2000;    // bytes of text
constexpr size_t kAlignment = 64;     // of a program's bytes
constexpr uintptr_t kPage = 4096;     // the smallest page of any device
constexpr uintptr_t kReadAhead = 128; // XNNPACK may read this many bytes past the end of an input

thread_local std::string last_error;

// The runtime logs each step of a failure, beginning with the cause.
void log_message(
    et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* text,
    size_t length) {
  if (level == kFatal) {  // the runtime will abort; the parent process reads this output
    fprintf(stderr, "executorch: %.*s\n", static_cast<int>(length), text);
  } else if (level == kError && last_error.size() < kMaxError) {
    last_error.append(last_error.empty() ? "" : "; ").append(text, length);
  }
}

// A process has only one log handler, the last one registered. ExecuTorch's Python bindings register theirs when
// they are imported.
bool log_here() {
  bool registered = executorch::runtime::register_pal(
      executorch::runtime::PalImpl::create(log_message, __FILE__));
  last_error.clear();  // discard the message about an earlier handler
  return registered;
}

const bool logs_from_the_start = log_here();

bool failed(Error error, const char* what) {
  if (error == Error::Ok) return false;
  std::string detail = last_error.empty() ? "" : ": " + last_error;
  last_error = std::string(what) + ": " + executorch::runtime::to_string(error) + detail;
  return true;
}

struct Tensor {
  std::vector<int32_t> shape;
  int32_t dtype;  // ExecuTorch's ScalarType
  size_t nbytes;
};

struct File {
  std::unique_ptr<uint8_t, decltype(&free)> bytes{nullptr, free};
  std::unique_ptr<Module> module;
};

struct LoadedProgram {
  std::shared_ptr<File> file;
  Method* method = nullptr;
  std::vector<Tensor> inputs, outputs;
  std::vector<TensorPtr> input_tensors;
  std::vector<std::vector<uint8_t>> padded;  // copies of inputs that end too close to a page's end
  std::vector<bool> bound;                   // whether each output is written directly to the caller's memory
};

bool describe(const Result<TensorInfo>& info, const char* what, std::vector<Tensor>& tensors) {
  if (failed(info.error(), what)) return false;
  auto sizes = info->sizes();
  tensors.push_back(
      {{sizes.begin(), sizes.end()}, static_cast<int32_t>(info->scalar_type()), info->nbytes()});
  return true;
}

bool describe_all(const MethodMeta& meta, LoadedProgram& program) {
  for (size_t i = 0; i < meta.num_inputs(); ++i)
    if (!describe(meta.input_tensor_meta(i), "input", program.inputs)) return false;
  for (size_t i = 0; i < meta.num_outputs(); ++i)
    if (!describe(meta.output_tensor_meta(i), "output", program.outputs)) return false;
  return true;
}

bool fits(const MethodMeta& meta, uint64_t max_bytes) {
  uint64_t total = 0;
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    auto size = meta.memory_planned_buffer_size(i);
    if (failed(size.error(), "planned memory")) return false;
    total += static_cast<uint64_t>(*size);
  }
  if (max_bytes == 0 || total <= max_bytes) return true;
  last_error = "memory: it needs " + std::to_string(total) + " bytes, expected at most " +
      std::to_string(max_bytes);
  return false;
}

// An output is written directly to the caller's memory, unless the memory plan includes it, or it is also an input
// or another output.
bool find_bound(const MethodMeta& meta, LoadedProgram& program) {
  std::vector<EValue> values(program.inputs.size() + program.outputs.size());
  if (failed(program.method->get_inputs(values.data(), program.inputs.size()), "inputs"))
    return false;
  EValue* outputs = values.data() + program.inputs.size();
  if (failed(program.method->get_outputs(outputs, program.outputs.size()), "outputs")) return false;
  std::set<const void*> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    bool first = seen.insert(values[i].toTensor().unsafeGetTensorImpl()).second;
    if (i >= program.inputs.size()) {
      auto output = meta.output_tensor_meta(i - program.inputs.size());
      program.bound.push_back(first && !output->is_memory_planned());
    }
  }
  return true;
}

bool open(File& file, const void* data, size_t size) {
  size_t room = (size / kAlignment + 1) * kAlignment;
  file.bytes.reset(static_cast<uint8_t*>(aligned_alloc(kAlignment, room)));
  if (!file.bytes) throw std::bad_alloc();
  memcpy(file.bytes.get(), data, size);
  auto loader = std::make_unique<BufferDataLoader>(file.bytes.get(), size);
  const bool share_memory = true;
  file.module = std::make_unique<Module>(
      std::move(loader), nullptr, nullptr, nullptr, nullptr, share_memory);
  return !failed(file.module->load(Program::Verification::InternalConsistency), "file");
}

bool load(LoadedProgram& program, const std::string& name, uint64_t max_bytes) {
  Module& module = *program.file->module;
  const std::string what = "method " + name;
  auto meta = module.method_meta(name);
  if (failed(meta.error(), what.c_str())) return false;
  if (!describe_all(*meta, program) || !fits(*meta, max_bytes)) return false;
  if (failed(module.load_method(name), what.c_str())) return false;
  auto method = module.method(name);
  if (failed(method.error(), what.c_str())) return false;
  program.method = *method;
  if (!find_bound(*meta, program)) return false;
  for (const Tensor& input : program.inputs)
    program.input_tensors.push_back(executorch::extension::make_tensor_ptr(
        input.shape, nullptr, static_cast<executorch::aten::ScalarType>(input.dtype)));
  program.padded.resize(program.inputs.size());
  return true;
}

void* readable_past_end(LoadedProgram& program, size_t index, const void* data) {
  size_t nbytes = program.inputs[index].nbytes;
  uintptr_t end = reinterpret_cast<uintptr_t>(data) + nbytes;
  if (end % kPage != 0 && end % kPage <= kPage - kReadAhead) return const_cast<void*>(data);
  program.padded[index].resize(nbytes + kReadAhead);
  return memcpy(program.padded[index].data(), data, nbytes);
}

bool run(LoadedProgram& program, const void* const* inputs, void* const* outputs) {
  Method& method = *program.method;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    auto& tensor = *program.input_tensors[i];
    tensor.unsafeGetTensorImpl()->set_data(readable_past_end(program, i, inputs[i]));
    if (failed(method.set_input(EValue(tensor), i), "input")) return false;
  }
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (program.bound[i] &&
        failed(method.set_output_data_ptr(outputs[i], program.outputs[i].nbytes, i), "output"))
      return false;
  if (failed(method.execute(), "execution")) return false;
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (!program.bound[i])
      memcpy(outputs[i], method.get_output(i).toTensor().const_data_ptr(), program.outputs[i].nbytes);
  return true;
}

template <typename Work>
auto guarded(Work work) -> decltype(work()) {
  last_error.clear();
  try {
    return work();
  } catch (const std::bad_alloc&) {
    last_error = "memory: no more to be had";
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return {};
}

LoadedProgram& program_at(void* program) { return *static_cast<LoadedProgram*>(program); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int sedge_et_abi() { return kAbi; }

const char* sedge_et_version() { return SEDGE_EXECUTORCH_VERSION; }

const char* sedge_et_error() { return last_error.c_str(); }

// Sets the number of threads for all programs of this process. Call it before the first one is loaded.
int sedge_et_set_threads(uint32_t threads) {
  return guarded([&] {
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool != nullptr && pool->_unsafe_reset_threadpool(threads)) return 1;
    last_error = "the thread pool cannot be set up: " + last_error;
    return 0;
  });
}

// Opens and checks a .pte file. The bytes are copied.
void* sedge_et_open(const void* data, size_t size) {
  return guarded([&]() -> void* {
    log_here();
    auto file = std::make_shared<File>();
    return open(*file, data, size) ? new std::shared_ptr<File>(file) : nullptr;
  });
}

// Closes a file, whose programs must have been freed before. Returns free memory to the system, because a device is
// mostly idle.
void sedge_et_close(void* file) {
  delete static_cast<std::shared_ptr<File>*>(file);
  malloc_trim(0);
}

// Loads a method of a file. It may plan at most max_bytes of memory; 0 sets no limit.
void* sedge_et_load(void* file, const char* method, uint64_t max_bytes) {
  return guarded([&]() -> void* {
    auto program = std::make_unique<LoadedProgram>();
    program->file = *static_cast<std::shared_ptr<File>*>(file);
    return load(*program, method, max_bytes) ? program.release() : nullptr;
  });
}

void sedge_et_free(void* program) { delete static_cast<LoadedProgram*>(program); }

size_t sedge_et_count(void* program, int outputs) {
  return outputs ? program_at(program).outputs.size() : program_at(program).inputs.size();
}

// Gets dtype and shape of an input or output. The array shape has room for max_dims. Returns the number of
// dimensions.
size_t sedge_et_tensor(
    void* program, int outputs, size_t index, int32_t* dtype, int32_t* shape, size_t max_dims) {
  const Tensor& tensor = (outputs ? program_at(program).outputs : program_at(program).inputs)[index];
  *dtype = tensor.dtype;
  for (size_t i = 0; i < tensor.shape.size() && i < max_dims; ++i) shape[i] = tensor.shape[i];
  return tensor.shape.size();
}

int sedge_et_run(void* program, const void* const* inputs, void* const* outputs) {
  return guarded([&] { return run(program_at(program), inputs, outputs) ? 1 : 0; });
}

}  // extern "C"
#pragma GCC visibility pop
