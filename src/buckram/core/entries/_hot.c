/* Compiled twins of what costs most per entry: verify_entries, seal_adds, scan_add_frames (python_twins.py); what takes
 * a bookie's adds is in _take_adds.c.
 *
 * The Python is the reference and always there; the same tests run against both. CRC-32C comes from the processor's
 * own instruction. It takes three cycles to answer but can be asked in each, so three entries are checked side by side.
 */
#include "_hot.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define WITH_CRC __attribute__((target("sse4.2")))
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
#define MACHINE_HAS_CRC() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && \
    (defined(__ARM_FEATURE_CRC32) || (defined(__linux__) && !defined(__clang__)))
#include <arm_acle.h>
#define CRC_WORD(crc, word) __crc32cd((crc), (word))
#define CRC_BYTE(crc, byte) __crc32cb((crc), (byte))
#ifdef __ARM_FEATURE_CRC32 /* the whole program needs it, as on every Mac */
#define WITH_CRC
#define MACHINE_HAS_CRC() 1
#else /* the first processors of this architecture may be without */
#include <sys/auxv.h>
#define WITH_CRC __attribute__((target("+crc")))
#define MACHINE_HAS_CRC() ((getauxval(AT_HWCAP) & (1 << 7)) != 0)
#endif
#else
#error "no CRC-32C instruction is known for this machine: the pure Python does it"
#endif
#if SIZE_MAX < UINT64_MAX
#error "sizes are counted in 64 bits"
#endif

/* To be counted up, here and in hot.py, with each change of what the functions take, give or mean: one that was built
 * before and could not be built again is then left alone. */
#define INTERFACE 2

#define HEAD 32     /* of a stored entry: ledger, entry, LAC, length */
#define OVERHEAD 36 /* and its digest */
#define FRAME (ENTRY + OVERHEAD)
#define LANES 3

static inline uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* The digests of 1 to 3 stored entries of equal size; lanes that are not used repeat the first. */
WITH_CRC static void digests(const uint8_t *entry, Py_ssize_t stride, Py_ssize_t size, int lanes, uint32_t *found)
{
    const uint8_t *a = entry, *b = lanes > 1 ? entry + stride : entry, *c = lanes > 2 ? entry + 2 * stride : entry;
    uint32_t x = ~0u, y = ~0u, z = ~0u;
    Py_ssize_t i;
    for (i = 0; i < HEAD; i += 8) {
        x = CRC_WORD(x, word_at(a + i));
        y = CRC_WORD(y, word_at(b + i));
        z = CRC_WORD(z, word_at(c + i));
    }
    a += OVERHEAD, b += OVERHEAD, c += OVERHEAD;
    for (i = 0; i + 8 <= size; i += 8) {
        x = CRC_WORD(x, word_at(a + i));
        y = CRC_WORD(y, word_at(b + i));
        z = CRC_WORD(z, word_at(c + i));
    }
    for (; i < size; i++) {
        x = CRC_BYTE(x, a[i]);
        y = CRC_BYTE(y, b[i]);
        z = CRC_BYTE(z, c[i]);
    }
    found[0] = ~x, found[1] = ~y, found[2] = ~z;
}

/* -- verify_entries ---------------------------------------------------------------------------------------------------- */

/* How many are good, from the first on; their payloads are appended. -1 with an exception. */
static Py_ssize_t verify(const uint8_t *entries, Py_ssize_t stride, Py_ssize_t count, Py_ssize_t size, int64_t ledger,
                         int64_t first, PyObject *payloads)
{
    for (Py_ssize_t done = 0; done < count; done += LANES) {
        const uint8_t *entry = entries + done * stride;
        int lanes = count - done < LANES ? (int)(count - done) : LANES;
        uint32_t found[LANES];
        digests(entry, stride, size, lanes, found);
        for (int lane = 0; lane < lanes; lane++) {
            const uint8_t *at = entry + lane * stride;
            if (found[lane] != big_endian(at + HEAD, 4) || big_endian(at, 8) != (uint64_t)ledger ||
                big_endian(at + 8, 8) != (uint64_t)first + (uint64_t)(done + lane))
                return done + lane;
            if (payloads == Py_None)
                continue;
            PyObject *payload = PyBytes_FromStringAndSize((const char *)at + OVERHEAD, size);
            if (payload == NULL)
                return -1;
            int failed = PyList_Append(payloads, payload);
            Py_DECREF(payload);
            if (failed)
                return -1;
        }
    }
    return count;
}

static PyObject *verify_entries(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer packet;
    Py_ssize_t at, stride, count, size;
    long long ledger, first;
    PyObject *payloads;
    if (!PyArg_ParseTuple(args, "y*nnnnLLO", &packet, &at, &stride, &count, &size, &ledger, &first, &payloads))
        return NULL;
    Py_ssize_t found = -1;
    if (payloads != Py_None && !PyList_Check(payloads))
        PyErr_SetString(PyExc_TypeError, "payloads: a list or None");
    else if (at < 0 || count < 1 || size < 0 || at > packet.len - OVERHEAD || size > packet.len - OVERHEAD - at ||
             stride < OVERHEAD + size || (packet.len - OVERHEAD - size - at) / stride < count - 1)
        PyErr_Format(PyExc_ValueError, "%zd entries of %zd bytes, %zd apart, from %zd on: not within %zd bytes", count,
                     size, stride, at, packet.len);
    else
        found = verify((const uint8_t *)packet.buf + at, stride, count, size, ledger, first, payloads);
    PyBuffer_Release(&packet);
    return found < 0 ? NULL : PyLong_FromSsize_t(found);
}

/* -- seal_adds ------------------------------------------------------------------------------------------------------ */

/* All frames but for their digests; the ledger's length after them, -1 with an exception. */
static int64_t lay_frames(uint8_t *at, PyObject *payloads, uint32_t header, const char *key, int64_t ledger,
                          int64_t first, int64_t lac, int64_t length)
{
    Py_ssize_t count = PyTuple_Size(payloads);
    for (Py_ssize_t n = 0; n < count; n++) {
        char *payload;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(payloads, n), &payload, &size))
            return -1;
        if (size > INT64_MAX - length || size > UINT32_MAX - (FRAME - 4)) {
            PyErr_SetString(PyExc_OverflowError, "a payload or the ledger's length is out of range");
            return -1;
        }
        length += size;
        put_big_endian(at, (uint64_t)size + FRAME - 4, 4);
        put_big_endian(at + 4, header, 4);
        memcpy(at + 8, key, KEY);
        put_big_endian(at + ENTRY, (uint64_t)ledger, 8);
        put_big_endian(at + ENTRY + 8, (uint64_t)(first + n), 8);
        put_big_endian(at + ENTRY + 16, (uint64_t)lac, 8);
        put_big_endian(at + ENTRY + 24, (uint64_t)length, 8);
        memcpy(at + FRAME, payload, (size_t)size);
        at += FRAME + size;
    }
    return length;
}

static void lay_digests(uint8_t *at, PyObject *payloads)
{
    Py_ssize_t count = PyTuple_Size(payloads);
    for (Py_ssize_t n = 0; n < count;) {
        Py_ssize_t size = PyBytes_Size(PyTuple_GetItem(payloads, n));
        int lanes = 1;
        while (lanes < LANES && n + lanes < count && PyBytes_Size(PyTuple_GetItem(payloads, n + lanes)) == size)
            lanes++;
        uint32_t found[LANES];
        digests(at + ENTRY, FRAME + size, size, lanes, found);
        for (int lane = 0; lane < lanes; lane++, at += FRAME + size)
            put_big_endian(at + ENTRY + HEAD, found[lane], 4);
        n += lanes;
    }
}

/* The bytes of all frames, -1 with an exception. */
static Py_ssize_t framed_size(PyObject *payloads)
{
    Py_ssize_t count = PyTuple_Size(payloads), total = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *payload = PyTuple_GetItem(payloads, n);
        if (!PyBytes_Check(payload)) {
            PyErr_Format(PyExc_TypeError, "a payload is %R, not bytes", (PyObject *)Py_TYPE(payload));
            return -1;
        }
        Py_ssize_t size = PyBytes_Size(payload);
        if (size > PY_SSIZE_T_MAX / 2 - FRAME - total) {
            PyErr_NoMemory();
            return -1;
        }
        total += FRAME + size;
    }
    return total;
}

static PyObject *seal_adds(PyObject *self, PyObject *args)
{
    (void)self;
    const char *key;
    Py_ssize_t key_size;
    long long header, ledger, first, lac, length;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "Ly#LLLLO!", &header, &key, &key_size, &ledger, &first, &lac, &length, &PyList_Type,
                          &list))
        return NULL;
    if (key_size != KEY)
        return PyErr_Format(PyExc_ValueError, "a key of %zd bytes, not %d", key_size, KEY);
    PyObject *data = NULL, *payloads = PyList_AsTuple(list); /* nobody changes that meanwhile */
    if (payloads == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(payloads), total = framed_size(payloads);
    int fits = length >= 0 && header >= 0 && header <= UINT32_MAX && (count == 0 || first <= INT64_MAX - (count - 1));
    if (total >= 0 && !fits)
        PyErr_Format(PyExc_OverflowError, "header %lld, entry ids from %lld on, length %lld: out of range", header,
                     first, length);
    else if (total >= 0 && (data = PyBytes_FromStringAndSize(NULL, total)) != NULL) {
        uint8_t *at = (uint8_t *)PyBytes_AsString(data);
        length = lay_frames(at, payloads, (uint32_t)header, key, ledger, first, lac, length);
        if (length < 0)
            Py_CLEAR(data);
        else
            lay_digests(at, payloads);
    }
    Py_DECREF(payloads);
    return data == NULL ? NULL : Py_BuildValue("NL", data, length);
}

/* -- scan_add_frames ----------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t start, cap;
    int64_t ledger, first, last, top;
    uint32_t header, length, stride;
} Run;

static int add_run(PyObject *runs, const Run *run, Py_ssize_t end)
{
    PyObject *row = Py_BuildValue("nnLLLILI", run->start, end, (long long)run->ledger, (long long)run->first,
                                  (long long)(run->last - run->first + 1), run->header & 0xFFFF,
                                  (long long)run->top, run->stride);
    int failed = row == NULL || PyList_Append(runs, row);
    Py_XDECREF(row);
    return failed;
}

/* Where it stopped; -1 with an exception. */
static Py_ssize_t scan(const uint8_t *chunk, Py_ssize_t size, Py_ssize_t offset, Py_ssize_t max_packet,
                       Py_ssize_t max_run, Py_ssize_t most_runs, PyObject *runs)
{
    Run run = {.start = -1};
    while (offset <= size - ENTRY - MIN_STORED) {
        const uint8_t *at = chunk + offset, *id = at + ENTRY;
        uint32_t length = (uint32_t)big_endian(at, 4), header = (uint32_t)big_endian(at + 4, 4);
        int64_t ledger = (int64_t)big_endian(id, 8), entry = (int64_t)big_endian(id + 8, 8);
        int64_t lac = (int64_t)big_endian(id + 16, 8);
        Py_ssize_t end = offset + 4 + (Py_ssize_t)length;
        int fits = length >= ENTRY - 4 + MIN_STORED && (Py_ssize_t)length <= max_packet;
        if (run.start >= 0 && entry > 0 && entry - 1 == run.last && ledger == run.ledger && header == run.header &&
            end <= run.cap && memcmp(at + 8, chunk + run.start + 8, KEY) == 0) {
            if (length != run.length) {
                if (!fits)
                    break;
                run.stride = 0;
            }
            if (lac > run.top)
                run.top = lac;
        } else {
            if (end > size || header >> 16 != 0x0201 || !fits || entry < 0 || ledger < 0)
                break;
            if (run.start >= 0) {
                if (add_run(runs, &run, offset))
                    return -1;
                if (PyList_Size(runs) >= most_runs)
                    return offset;
            }
            Py_ssize_t cap = max_run < size - offset ? offset + max_run : size;
            run = (Run){offset, cap, ledger, entry, entry, lac, header, length, length + 4};
        }
        run.last = entry;
        offset = end;
    }
    return run.start >= 0 && add_run(runs, &run, offset) ? -1 : offset;
}

static PyObject *scan_add_frames(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer chunk;
    Py_ssize_t offset, max_packet, max_run, most_runs;
    if (!PyArg_ParseTuple(args, "y*nnnn", &chunk, &offset, &max_packet, &max_run, &most_runs))
        return NULL;
    PyObject *runs = PyList_New(0);
    if (offset < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative offset");
        Py_CLEAR(runs);
    }
    if (runs != NULL && (offset = scan(chunk.buf, chunk.len, offset, max_packet, max_run, most_runs, runs)) < 0)
        Py_CLEAR(runs);
    PyBuffer_Release(&chunk);
    return runs == NULL ? NULL : Py_BuildValue("nN", offset, runs);
}

static PyMethodDef methods[] = {
    {"verify_entries", verify_entries, METH_VARARGS, "As buckram.core.entries.python_twins.verify_entries."},
    {"seal_adds", seal_adds, METH_VARARGS, "As buckram.core.entries.python_twins.seal_adds."},
    {"scan_add_frames", scan_add_frames, METH_VARARGS, "As buckram.core.entries.python_twins.scan_add_frames."},
    {"take_adds", take_adds, METH_VARARGS, "As buckram.core.storage.plain_adds.take_adds."},
    {"take_v3_adds", take_v3_adds, METH_VARARGS, "As buckram.core.storage.plain_adds.take_v3_adds."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    if (!MACHINE_HAS_CRC()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no CRC-32C instruction");
        return -1;
    }
    if (prepare_taking())
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "buckram.core.entries._hot", "Compiled twins; see buckram.core.entries.hot.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__hot(void)
{
    return PyModuleDef_Init(&module);
}
