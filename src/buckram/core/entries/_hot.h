/* What the sources of the compiled twins share. */
#ifndef BUCKRAM_HOT_H
#define BUCKRAM_HOT_H
#define PY_SSIZE_T_CLEAN
/* The stable interface of Python 3.11: what is built once serves every later Python. */
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MIN_STORED 24
#define KEY 20
#define ENTRY 28 /* where the stored entry begins in a frame: behind length, packet header, key */

static inline uint64_t big_endian(const uint8_t *at, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | at[i];
    return number;
}

static inline void put_big_endian(uint8_t *at, uint64_t number, int bytes)
{
    while (bytes-- > 0) {
        at[bytes] = (uint8_t)number;
        number >>= 8;
    }
}

/* _take_adds.c */
int prepare_taking(void);
PyObject *take_adds(PyObject *self, PyObject *args);
PyObject *take_v3_adds(PyObject *self, PyObject *args);

#endif
