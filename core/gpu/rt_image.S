/* SPDX-License-Identifier: Apache-2.0
 * The kernels for GPUs as bytes of the library; config/rules.mk names the file where there is one. */
    .section .rodata
    .balign 64
    .globl rt_device_image
    .hidden rt_device_image
rt_device_image:
#ifdef RT_IMAGE
    .incbin RT_IMAGE
#endif
end_of_image:
    .balign 8
    .globl rt_device_image_size
    .hidden rt_device_image_size
rt_device_image_size:
    .quad end_of_image - rt_device_image
    .section .note.GNU-stack,"",%progbits
