#!/usr/bin/python3
"""Computes 2 x + y on every CUDA device, and checks the result. It needs nothing but Python: it
calls the driver by ctypes.

    venice run --accelerators 1 --accel-needs cuda -- python3 examples/python/cuda_saxpy.py

It knows nothing of Venice: without `venice run` it uses the devices of this machine.
"""

import array
import ctypes

PTX = b"""
.version 6.4
.target sm_50
.address_size 64

.visible .entry saxpy(.param .f32 factor, .param .u64 x, .param .u64 y, .param .u32 count)
{
    .reg .pred %p;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %a<8>;

    ld.param.f32 %f1, [factor];
    ld.param.u64 %a1, [x];
    ld.param.u64 %a2, [y];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %a3, %a1;
    cvta.to.global.u64 %a4, %a2;
    mul.wide.u32 %a5, %r5, 4;
    add.u64 %a6, %a3, %a5;
    add.u64 %a7, %a4, %a5;
    ld.global.f32 %f2, [%a6];
    ld.global.f32 %f3, [%a7];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%a7], %f4;
DONE:
    ret;
}
"""
COUNT = 1 << 20
BLOCK = 256

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Calls a function of the driver; ends the program if it fails."""
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        raise SystemExit(f"{name}: {text.value.decode() if text.value else code}")


def made(kind, name, *arguments):
    """Calls a function whose first argument is its result."""
    result = kind()
    call(name, ctypes.byref(result), *arguments)
    return result


size_t, pointer, address = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
call("cuInit", 0)
for device in range(made(ctypes.c_int, "cuDeviceGetCount").value):
    name = ctypes.create_string_buffer(100)
    call("cuDeviceGetName", name, len(name), device)
    call("cuCtxSetCurrent", made(pointer, "cuDevicePrimaryCtxRetain", device))
    module = made(pointer, "cuModuleLoadData", PTX)
    saxpy = made(pointer, "cuModuleGetFunction", module, b"saxpy")
    stream = made(pointer, "cuStreamCreate", 0)

    x = array.array("f", range(COUNT))
    y = array.array("f", [1.0]) * COUNT
    size = size_t(4 * COUNT)
    on_x, on_y = (made(address, "cuMemAlloc_v2", size) for _ in range(2))
    for target, source in ((on_x, x), (on_y, y)):
        call("cuMemcpyHtoDAsync_v2", target, pointer(source.buffer_info()[0]), size, stream)

    parameters = ctypes.c_float(2.0), on_x, on_y, ctypes.c_uint32(COUNT)
    places = (pointer * 4)(*(ctypes.addressof(it) for it in parameters))
    grid = (COUNT + BLOCK - 1) // BLOCK
    call("cuLaunchKernel", saxpy, grid, 1, 1, BLOCK, 1, 1, 0, stream, places, None)

    call("cuMemcpyDtoHAsync_v2", pointer(y.buffer_info()[0]), on_y, size, stream)
    call("cuStreamSynchronize", stream)
    call("cuMemFree_v2", on_x)
    call("cuMemFree_v2", on_y)
    verdict = "right" if y == array.array("f", (2 * it + 1 for it in range(COUNT))) else "WRONG"
    print(f"{name.value.decode()}: {verdict}", flush=True)
