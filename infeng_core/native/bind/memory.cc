// Python bindings of Pool, Arena, Weight and KvCache.
#include <infeng/extension/error.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind/bindings.h"
#include "program/kv_cache.h"
#include "program/pool.h"
#include "vocabulary/names.h"
#include "weights/arena.h"
#include "weights/weight.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {

HeldBuffer hold_buffer(const py::object& object, const char* what) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    fail(kBad, what, ": needs an object with contiguous bytes, such as an Arena or a NumPy array");
  }
  HeldBuffer held;
  held.data = static_cast<const std::byte*>(view->buf);
  held.nbytes = view->len;
  held.owner = std::shared_ptr<const void>(view.release(), [](void* pointer) {
    const py::gil_scoped_acquire gil;
    PyBuffer_Release(static_cast<Py_buffer*>(pointer));
    delete static_cast<Py_buffer*>(pointer);
  });
  return held;
}

namespace {

void bind_pool(py::module_& m) {
  py::class_<Pool, std::shared_ptr<Pool>>(m, "Pool",
                                          "Worker threads; the thread that calls ``Program.run`` is worker 0.")
      .def(py::init<int, bool, int, std::vector<int>, int>(), "threads"_a, py::kw_only(), "pin"_a = false,
           "spin_us"_a = 50, "cpus"_a = std::vector<int>{}, "nice"_a = 0)
      .def_property_readonly("threads", &Pool::threads)
      .def_property_readonly("cpus", &Pool::cpus);
}

const char* name_of_policy(Pages::Policy policy) {
  switch (policy) {
    case Pages::Policy::prefer:
      return "prefer";
    case Pages::Policy::interleave:
      return "interleave";
    default:
      return "first-touch";
  }
}

Pages::Policy policy_of(const std::string& name) {
  for (const auto policy : {Pages::Policy::first_touch, Pages::Policy::prefer, Pages::Policy::interleave}) {
    if (name == name_of_policy(policy)) return policy;
  }
  fail(kBad, "no placement of pages is called ", name, ": first-touch, prefer, interleave");
}

// Locks the whole pages around a buffer, such as a mapped file.
void lock_buffer(const py::object& object) {
  const HeldBuffer held = hold_buffer(object, "data");
  Pages pages;
  pages.lock = true;
  place(pages, const_cast<std::byte*>(held.data), held.nbytes);
}

void bind_pages(py::module_& m) {
  py::class_<Pages>(m, "Pages", "On which NUMA nodes pages lie, and whether they may leave memory.")
      .def(py::init([](const std::string& policy, std::vector<int> nodes, bool lock) {
             Pages pages{policy_of(policy), std::move(nodes), lock};
             check(pages);
             return pages;
           }),
           "policy"_a = "first-touch", "nodes"_a = std::vector<int>{}, "lock"_a = false)
      .def_readonly("lock", &Pages::lock)
      .def_readonly("nodes", &Pages::nodes)
      .def_property_readonly("policy", [](const Pages& pages) { return name_of_policy(pages.policy); });
  m.def("lock_memory", &lock_buffer, "data"_a,
        "Read the pages under ``data`` and keep them in memory as long as they are mapped.");
}

void bind_arena(py::module_& m) {
  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena", py::buffer_protocol(),
                                            "Zeroed anonymous memory, 2 MB aligned; a buffer of writable bytes.")
      .def(py::init<int64_t, bool, const Pages&>(), "nbytes"_a, py::kw_only(), "huge_pages"_a = true,
           "pages"_a = Pages{})
      .def_property_readonly("place_error", &Arena::place_error)
      .def_property_readonly("nbytes", &Arena::nbytes)
      .def("huge_bytes", &Arena::huge_bytes, "Return how many bytes are backed by huge pages now.")
      .def("__len__", &Arena::nbytes)
      .def_buffer([](Arena& arena) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(arena.data()), static_cast<py::ssize_t>(arena.nbytes()));
      });
}

std::shared_ptr<Weight> weight_from(const std::string& format, int64_t n, int64_t k, int64_t panels,
                                    int64_t panel_bytes, const py::object& data, int64_t offset) {
  const HeldBuffer held = hold_buffer(data, "data");
  if (offset < 0 || offset > held.nbytes) {
    fail(kBad, "offset ", offset, " is outside of the ", held.nbytes, " bytes of data");
  }
  return std::const_pointer_cast<Weight>(make_weight(number_of(Vocabulary::weight, format), n, k, panels, panel_bytes,
                                                     held.data + offset, held.nbytes - offset, held.owner));
}

void bind_weight(py::module_& m) {
  py::class_<Weight, std::shared_ptr<Weight>>(m, "Weight", "A packed weight; keeps its data alive.")
      .def(py::init(&weight_from), "format"_a, "n"_a, "k"_a, "panels"_a, "panel_bytes"_a, "data"_a, "offset"_a = 0)
      .def_property_readonly("format", [](const Weight& w) { return name_of(Vocabulary::weight, w.abi.format); })
      .def_property_readonly("n", [](const Weight& w) { return w.abi.n; })
      .def_property_readonly("k", [](const Weight& w) { return w.abi.k; })
      .def_property_readonly("panels", [](const Weight& w) { return w.abi.panels; });
}

void bind_kv_cache(py::module_& m) {
  py::list formats;
  for (const CacheFormat& format : cache_formats()) formats.append(format.name);
  m.attr("CACHE_FORMATS") = py::tuple(formats);
  py::class_<KvCache, std::shared_ptr<KvCache>>(m, "KvCache", "Key/value blocks of all layers in one arena.")
      .def(py::init([](const std::string& format, int64_t layers, int64_t blocks, int64_t kv_heads, int64_t head_dim,
                       int64_t v_head_dim, int64_t block_tokens, const Pages& pages, std::shared_ptr<Device> device) {
             return std::make_shared<KvCache>(number_of(Vocabulary::kv, format), layers, blocks, kv_heads, head_dim,
                                              v_head_dim == 0 ? head_dim : v_head_dim, block_tokens, pages, device);
           }),
           "format"_a, py::kw_only(), "layers"_a, "blocks"_a, "kv_heads"_a, "head_dim"_a, "v_head_dim"_a = 0,
           "block_tokens"_a = 16, "pages"_a = Pages{}, "device"_a = py::none())
      .def_static(
          "bytes_per_block",
          [](const std::string& format, int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t v_head_dim,
             int64_t block_tokens) {
            return KvCache::bytes_per_block(number_of(Vocabulary::kv, format), layers, kv_heads, head_dim,
                                            v_head_dim == 0 ? head_dim : v_head_dim, block_tokens);
          },
          "format"_a, py::kw_only(), "layers"_a, "kv_heads"_a, "head_dim"_a, "v_head_dim"_a = 0, "block_tokens"_a = 16)
      .def_property_readonly("nbytes", &KvCache::nbytes)
      .def_property_readonly("block_bytes", &KvCache::block_bytes)
      .def_property_readonly("place_error", &KvCache::place_error)
      .def(
          "layer",
          [](const py::object& self, int64_t index) {
            const auto& cache = self.cast<const KvCache&>();
            if (cache.is_on_device()) fail(kBad, "the cache is on a device: use read_blocks()");
            const infeng_kv_cache layer = cache.layer(index);
            return py::array_t<uint8_t>({int64_t{layer.block_count}, int64_t{layer.kv_heads}, layer.head_stride},
                                        {layer.block_stride, layer.head_stride, int64_t{1}},
                                        static_cast<uint8_t*>(layer.base), self);
          },
          "index"_a, "Return layer ``index`` as (blocks, kv_heads, slab bytes), a view.");
}

}  // namespace

void bind_memory(py::module_& m) {
  bind_pages(m);
  bind_pool(m);
  bind_arena(m);
  bind_weight(m);
  bind_kv_cache(m);
}

}  // namespace infeng
