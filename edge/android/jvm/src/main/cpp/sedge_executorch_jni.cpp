// Implements the functions of org.sedge.executorch.Native with the C interface of edge/native. The Java side must
// have checked the pointers that it passes. A failure becomes a BackendException with the runtime's own message.

#include <jni.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {
int sedge_et_abi();
const char* sedge_et_error();
int sedge_et_set_threads(uint32_t threads);
void* sedge_et_open(const void* data, size_t size);
void sedge_et_close(void* file);
void* sedge_et_load(void* file, const char* method, uint64_t max_bytes);
void sedge_et_free(void* program);
size_t sedge_et_count(void* program, int outputs);
size_t sedge_et_tensor(
    void* program, int outputs, size_t index, int32_t* dtype, int32_t* shape, size_t max_dims);
int sedge_et_run(void* program, const void* const* inputs, void* const* outputs);
}

namespace {

constexpr int kAbi = 1;  // version of the functions above
constexpr size_t kMaxDims = 16;

void* pointer(jlong handle) { return reinterpret_cast<void*>(handle); }

jlong handle(void* pointer) { return reinterpret_cast<jlong>(pointer); }

// Throws a BackendException. Replaces characters outside ASCII, because Java's "modified" UTF-8 has no four-byte
// sequences, and the names in a damaged file may not even be text.
void fail(JNIEnv* env, std::string text) {
  for (char& sign : text)
    if (sign < ' ' || sign > '~') sign = '?';
  jclass thrown = env->FindClass("org/sedge/edge/backends/BackendException");
  if (thrown != nullptr) env->ThrowNew(thrown, text.c_str());
}

std::vector<void*> addresses(JNIEnv* env, jobjectArray buffers) {
  std::vector<void*> found;
  for (jsize i = 0; i < env->GetArrayLength(buffers); ++i) {
    jobject buffer = env->GetObjectArrayElement(buffers, i);
    found.push_back(env->GetDirectBufferAddress(buffer));
    env->DeleteLocalRef(buffer);
  }
  return found;
}

}  // namespace

extern "C" {

JNIEXPORT void JNICALL Java_org_sedge_executorch_Native_begin(JNIEnv* env, jclass, jint threads) {
  if (sedge_et_abi() != kAbi)
    return fail(env, "interface " + std::to_string(sedge_et_abi()) + ", expected " + std::to_string(kAbi));
  if (!sedge_et_set_threads(static_cast<uint32_t>(threads))) fail(env, sedge_et_error());
}

JNIEXPORT jlong JNICALL Java_org_sedge_executorch_Native_open(JNIEnv* env, jclass, jobject data) {
  auto size = static_cast<size_t>(env->GetDirectBufferCapacity(data));
  void* file = sedge_et_open(env->GetDirectBufferAddress(data), size);
  if (file == nullptr) fail(env, sedge_et_error());
  return handle(file);
}

JNIEXPORT void JNICALL Java_org_sedge_executorch_Native_close(JNIEnv*, jclass, jlong file) {
  sedge_et_close(pointer(file));
}

JNIEXPORT jlong JNICALL Java_org_sedge_executorch_Native_load(
    JNIEnv* env, jclass, jlong file, jstring method, jlong max_bytes) {
  const char* name = env->GetStringUTFChars(method, nullptr);
  if (name == nullptr) return 0;
  void* program = sedge_et_load(pointer(file), name, static_cast<uint64_t>(max_bytes));
  env->ReleaseStringUTFChars(method, name);
  if (program == nullptr) fail(env, sedge_et_error());
  return handle(program);
}

JNIEXPORT void JNICALL Java_org_sedge_executorch_Native_free(JNIEnv*, jclass, jlong program) {
  sedge_et_free(pointer(program));
}

JNIEXPORT jint JNICALL Java_org_sedge_executorch_Native_count(
    JNIEnv*, jclass, jlong program, jboolean outputs) {
  return static_cast<jint>(sedge_et_count(pointer(program), outputs));
}

// Returns ExecuTorch's number for the type of an input or output, followed by its extents.
JNIEXPORT jintArray JNICALL Java_org_sedge_executorch_Native_tensor(
    JNIEnv* env, jclass, jlong program, jboolean outputs, jint index) {
  int32_t found[1 + kMaxDims];
  size_t dims = sedge_et_tensor(
      pointer(program), outputs, static_cast<size_t>(index), &found[0], &found[1], kMaxDims);
  if (dims > kMaxDims) {
    fail(env, std::to_string(dims) + " dimensions, expected at most " + std::to_string(kMaxDims));
    return nullptr;
  }
  auto size = static_cast<jsize>(1 + dims);
  jintArray array = env->NewIntArray(size);
  if (array != nullptr) env->SetIntArrayRegion(array, 0, size, found);
  return array;
}

JNIEXPORT void JNICALL Java_org_sedge_executorch_Native_run(
    JNIEnv* env, jclass, jlong program, jobjectArray inputs, jobjectArray outputs) {
  std::vector<void*> given = addresses(env, inputs);
  std::vector<void*> made = addresses(env, outputs);
  if (!sedge_et_run(pointer(program), given.data(), made.data())) fail(env, sedge_et_error());
}

}  // extern "C"
