//! Sizes of images.

#![expect(non_upper_case_globals, reason = "names of cl.h")]

use opencl_sys::*;

use super::ImageShape;

impl ImageShape {
    /// Returns the bytes of a pixel; `None` for a format that is none.
    pub fn pixel_bytes(&self) -> Option<u64> {
        let channels = match self.order {
            CL_R | CL_A | CL_INTENSITY | CL_LUMINANCE | CL_DEPTH | CL_Rx => 1,
            CL_RG | CL_RA | CL_RGx => 2,
            CL_RGB | CL_RGBx | CL_sRGB | CL_sRGBx => 3,
            CL_RGBA | CL_BGRA | CL_ARGB | CL_ABGR | CL_sRGBA | CL_sBGRA => 4,
            _ => return None,
        };
        let bytes = match self.channel {
            CL_SNORM_INT8 | CL_UNORM_INT8 | CL_SIGNED_INT8 | CL_UNSIGNED_INT8 => channels,
            CL_SNORM_INT16 | CL_UNORM_INT16 | CL_SIGNED_INT16 | CL_UNSIGNED_INT16
            | CL_HALF_FLOAT => 2 * channels,
            CL_SIGNED_INT32 | CL_UNSIGNED_INT32 | CL_FLOAT => 4 * channels,
            CL_UNORM_SHORT_565 | CL_UNORM_SHORT_555 => 2,
            CL_UNORM_INT_101010 | CL_UNORM_INT_101010_2 => 4,
            _ => return None,
        };
        Some(bytes)
    }

    /// Returns width, height and depth as regions count them: layers of an array are its last
    /// dimension.
    pub fn extent(&self) -> [u64; 3] {
        let [width, height, depth] = self.size;
        match self.kind {
            CL_MEM_OBJECT_IMAGE3D => [width, height, depth],
            CL_MEM_OBJECT_IMAGE2D => [width, height, 1],
            CL_MEM_OBJECT_IMAGE2D_ARRAY => [width, height, self.array],
            CL_MEM_OBJECT_IMAGE1D_ARRAY => [width, self.array, 1],
            _ => [width, 1, 1],
        }
    }

    /// Returns the number of pixels; `None` if it is no number.
    pub fn pixels(&self) -> Option<u64> {
        let [width, height, depth] = self.extent();
        width.checked_mul(height)?.checked_mul(depth)
    }
}
